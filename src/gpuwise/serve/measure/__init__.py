"""A load sent to a real server that speaks OpenAI's interface, and what came back.

``http`` one streamed request, ``prompts`` texts of a number of tokens, ``run`` a load with its limits, ``measured`` latencies
and failures.
"""
