"""The program ``monitel``, and its command ``monitel run``: start a command, stay out of its way, and report its end.

This package is apart from ``monitel`` because importing that takes longer than starting a command. What is loaded
before the command starts imports only the standard library.
"""
