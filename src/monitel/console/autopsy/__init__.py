"""Reports about processes, dead and alive, from their black boxes and from the events about their deaths."""
