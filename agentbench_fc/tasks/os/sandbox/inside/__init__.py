"""What runs inside a sandbox as its process 1; wire.py sends these modules there, joined into one program.

They import nothing but Python's core and each other, and work from Python 3.9 on.
"""
