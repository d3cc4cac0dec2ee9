"""``monitel run``: start a command, stay out of its way, and report its end.

Everything that is loaded before the command starts imports only the standard library.
"""
