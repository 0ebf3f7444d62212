"""What the devices do over time: sampling, history, what holds a device back, recording, exporting."""
