// Run pytest on a CPython that is compiled to WebAssembly, which has no fork, threads, processes or sockets.
//
// node pytest.mjs PYODIDE CLONE SITE_PACKAGES [ARGUMENT...]: PYODIDE is the folder of the npm package, SITE_PACKAGES has
// pytest, and what the tests import, in pure Python. Skipped tests leave coroutines that nobody has awaited.

import { join, resolve } from "node:path";

const [pyodide, clone, sitePackages, ...pytestArguments] = process.argv.slice(2);
const { loadPyodide } = await import(join(resolve(pyodide), "pyodide.mjs"));
const python = await loadPyodide({ env: { HOME: "/home/pyodide", MONITEL_RUN_EVENTS: "0" } });
for (const [folder, source] of [["/clone", clone], ["/site-packages", sitePackages]]) {
  python.mountNodeFS(folder, resolve(source));
}
python.globals.set("pytest_arguments", python.toPy(pytestArguments));
const status = python.runPython(`
import os, sys
sys.dont_write_bytecode = True
sys.path[:0] = ["/clone/src", "/clone"]
sys.path.append("/site-packages")
os.chdir("/clone")
import pytest
print("CPython", sys.version.split()[0], "on", sys.platform, flush=True)
int(pytest.main(["-p", "no:cacheprovider", "-p", "tests.webassembly.missing_features", "-p", "no:unraisableexception", "-o", "faulthandler_timeout=0", *pytest_arguments]))
`);
process.exit(status);
