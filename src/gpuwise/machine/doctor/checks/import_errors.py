"""Fixes for a failed import, by the text of its error."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping

from gpuwise.machine.doctor import fixes
from gpuwise.machine.doctor.finding import Fix
from gpuwise.machine.doctor.observation import Machine
from gpuwise.machine.doctor.probes.python import FRAMEWORKS

_REQUIRED = re.compile(r"([A-Za-z0-9_.-]+[<>=!~]=?[^\s;]+) is required .*but found")
"""Wording of transformers (utils/versions.py)."""
_NAME = re.compile(r"cannot import name '[^']+' from '([A-Za-z0-9_]+)[^']*'")
_STATIC_TLS = re.compile(r"(\S+\.so[\w.]*): cannot allocate memory in static TLS block")
_SHADOW = re.compile(r"partially initialized module '[^']+'.*\((/[^()]+\.py)\)")
_MODULE = re.compile(r"No module named '([A-Za-z0-9_]+)(\.[A-Za-z0-9_.]+)?'")
_OF_NUMPY = re.compile(r"numpy\.\w+ size changed.* Expected (\d+) from C header, got (\d+)")
_HALF = re.compile(r"partially initialized module '([A-Za-z0-9_]+)[^']*' has no attribute '\w*mypyc'")
_SYSTEM = re.compile(r"(lib[\w+-]+\.so\.\d+): cannot open shared object file")
SYSTEM_LIBRARIES = {
    "libopenblas.so.0": "libopenblas0",
    "libgomp.so.1": "libgomp1",
    "libGL.so.1": "libgl1",
    "libsndfile.so.1": "libsndfile1",
}
"""Debian's packages of libraries that no wheel of PyTorch's brings (packages.debian.org)."""
WORDS: Mapping[str, tuple[str, str]] = {
    r"removed in the NumPy 2\.0 release|numpy\.core\.multiarray failed to import": ("It was made for NumPy 1", "'numpy<2'"),
    r"Descriptors cannot (not )?be created directly": ("Its generated code is of an older protobuf", "'protobuf<3.21'"),
    r"module 'mpmath' has no attribute 'rational'": ("SymPy uses what mpmath 1.4 has no more", "'mpmath<1.4'"),
    r"cannot import name 'soft_unicode' from 'markupsafe'": ("Jinja uses what MarkupSafe 2.1 has no more", "-U jinja2"),
    r"cannot import name 'packaging' from 'pkg_resources'": ("It uses what setuptools 70 has no more", "'setuptools<70'"),
    r"Keras 3, but this is not yet supported": ("Transformers wants the Keras of before beside it", "tf-keras"),
    r"module 'cv2[\w.]*' has no attribute": ("Parts of two releases lie in one folder", "--force-reinstall opencv-python"),
    r"CUDA Setup failed despite (a )?GPU": ("Its release has no library for this CUDA", "-U bitsandbytes"),
}
"""Text of an error about a third package, and the package to install."""
DISTRIBUTIONS = {
    "google": "protobuf",
    "PIL": "pillow",
    "yaml": "pyyaml",
    "cv2": "opencv-python-headless",
    "sklearn": "scikit-learn",
}
"""Modules that other distributions bring than those of their name."""
_ATTRIBUTE = re.compile(r"module '([A-Za-z0-9_]+)(?:\.[A-Za-z0-9_.]+)?' has no attribute")
_OF_TORCH = re.compile(r"module 'torch(?:\.[a-z_.]+)?' has no attribute")


def import_fix(m: Machine, error: str, name: str) -> Fix | None:
    """The fix for the import of ``name``; None if its error suggests only a reinstallation."""
    if required := _REQUIRED.search(error):
        return Fix("Install the release that it asks for", (fixes.pip_install(m, shlex.quote(required[1].rstrip("."))),))
    if (shadow := _SHADOW.search(error)) and "/site-packages/" not in shadow[1] and "/dist-packages/" not in shadow[1]:
        file = shadow[1]
        moved = f"{file.removesuffix('.py')}_own.py"
        return Fix("A file of the same name stands before it: rename it", (f"mv {shlex.quote(file)} {shlex.quote(moved)}",))
    if tls := _STATIC_TLS.search(error):
        return Fix(
            "Load it first: the room for thread storage is given away in the order of loading",
            (f"export LD_PRELOAD={shlex.quote(tls[1])}",),
        )
    for words, (why, package) in WORDS.items():
        if re.search(words, error):
            return Fix(why, (fixes.pip_install(m, package),))
    if half := _HALF.search(error):
        return Fix(
            "Parts of two releases of it lie in one folder",
            (fixes.pip_install(m, "--force-reinstall", half[1].replace("_", "-")),),
        )
    if (system := _SYSTEM.search(error)) and system[1] in SYSTEM_LIBRARIES:
        return Fix("Install the system's library that it is linked to", (f"apt-get install -y {SYSTEM_LIBRARIES[system[1]]}",))
    if "undefined symbol: iJIT" in error:
        words = "'mkl<2024.1'"
        command = f"conda install {words}" if _from_conda(m, name) else fixes.pip_install(m, words)
        return Fix("Install the last MKL that has this function (pytorch/pytorch, issue 123097)", (command,))
    if _OF_TORCH.search(error) or (name == "torch" and "cannot enable executable stack" in error):
        # a function of a newer torch; or glibc 2.41 and newer, which an older torch was not linked for
        return fixes.torch_fix(m, fixes.capabilities_here(m), newest=True)[0]
    if sizes := _OF_NUMPY.search(error):
        # the type grew with NumPy 2: code compiled for the larger one needs it
        return Fix("Install a NumPy like that it was compiled for", (_numpy_of(m, int(sizes[1]) > int(sizes[2])),))
    if "No module named 'pkg_resources'" in error:
        return Fix("Install the last setuptools that has it", (fixes.pip_install(m, "'setuptools<81'"),))
    older = _NAME.search(error) or _ATTRIBUTE.search(error)
    if older and older[1] != name:
        other = DISTRIBUTIONS.get(older[1], older[1])
        if name in FRAMEWORKS:
            return Fix("Update the package that it imports from, which is older", (fixes.pip_install(m, "-U", other),))
        # one of the two is older than the other
        return Fix("Their releases do not fit each other: install the newest of both", (fixes.pip_install(m, "-U", other, name),))
    missing = _MODULE.search(error)
    if missing and missing[1] != name:
        there = m.python is not None and m.python.find(missing[1].replace("_", "-")) is not None
        if missing[2] and there:
            # a module that the installed release has no more
            return Fix("Update it: it is older than the package that it imports from", (fixes.pip_install(m, "-U", name),))
        package = DISTRIBUTIONS.get(missing[1], missing[1].replace("_", "-"))
        return Fix("Install what it misses", (fixes.pip_install(m, package),))
    return None


def _numpy_of(m: Machine, newer: bool) -> str:
    return fixes.pip_install(m, "-U", "numpy") if newer else fixes.pip_install(m, "'numpy<2'")


def _from_conda(m: Machine, name: str) -> bool:
    package = m.python.find(name) if m.python else None
    return package is not None and package.place == "conda"


VARIABLES = {
    "PYTORCH_CUDA_ALLOC_CONF": re.compile(r"allocator (option|config)", re.IGNORECASE),
    "PYTORCH_ALLOC_CONF": re.compile(r"allocator (option|config)", re.IGNORECASE),
    "HSA_OVERRIDE_GFX_VERSION": re.compile(r"HIP error|invalid device function|hipError", re.IGNORECASE),
}
"""Variables of the environment, and what a product raises where one of them is wrong."""


def run_fix(m: Machine, errors: tuple[str, ...]) -> Fix | None:
    """The fix for a product that failed, if an environment variable explains it, or a folder that the loader does not know."""
    if m.system.wsl and any("libcuda.so: cannot open" in e for e in errors):
        return Fix(
            "Name the folder of the driver's library, which has libcuda.so beside libcuda.so.1 (microsoft/WSL, issue 8587)",
            ("export LD_LIBRARY_PATH=/usr/lib/wsl/lib:$LD_LIBRARY_PATH",),
        )
    for name, words in VARIABLES.items():
        if name in m.environment and any(words.search(e) for e in errors):
            return Fix(f"Without {name}={m.environment[name]}, which these words are about", (f"unset {name}",))
    return None
