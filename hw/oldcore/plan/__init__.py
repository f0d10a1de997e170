"""What a core is before it is built: geometry, program, image, payloads.

The gateware, the cycle model and the reports all start from it.
"""
