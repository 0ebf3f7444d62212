"""What is computed: the step table, strategies, and the front ends that write them. Knows no hardware."""
