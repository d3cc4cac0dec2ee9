"""Ranges in forked children."""

from typing import Any

RunScript = Any


def test_forked_child(run_script: RunScript) -> None:
    ended = run_script("""
from monitel.profiler import ranges, record_function
received = []
listening = ranges.listen(ended=received.append)
with record_function("parent"):
    pass
child = os.fork()
if child == 0:
    with record_function("unlistened"):
        pass
    with ranges.listen(ended=received.append), record_function("child"):
        pass
    say([each.name for each in received], received[1].track.thread_id == os.getpid())
    os._exit(0)
os.waitpid(child, 0)
with record_function("parent again"):
    pass
say([each.name for each in received], received[1].track.thread_id == os.getpid())
""")
    assert ["['parent', 'child'] True", "['parent', 'parent again'] True"] == ended.lines
