"""The summary at the end of ``monitel run``: reports of all processes, late ranks, and the text."""
