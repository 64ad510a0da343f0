"""The parts of tools/device_check.py."""
