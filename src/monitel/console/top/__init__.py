"""The processes of this machine as they run: read from their black boxes again and again, and shown as rows."""
