"""Build the C++ part of the device with g++; it is built again when its sources, torch or Python change."""

import hashlib
import importlib.util
import os
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from types import ModuleType

_SOURCES = Path(__file__).parent / "csrc"
_NAME = "_fake_accelerator"


def load() -> ModuleType:
    """Import the extension module; build it first if needed."""
    spec = importlib.util.spec_from_file_location(_NAME, build())
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def build() -> Path:
    """Return the built library."""
    library = _folder() / f"{_NAME}-{_version()}.so"
    if not library.exists():
        library.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=library.parent) as folder:
            part = Path(folder) / library.name
            subprocess.run(_command(part), check=True)
            part.rename(library)
    return library


def _folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "onecurve-tests"


def _version() -> str:
    version = hashlib.sha256(f"{_torch_folder()} {_torch_version()} {sys.version}".encode())
    for source in sorted(_SOURCES.iterdir()):
        version.update(source.read_bytes())
    return version.hexdigest()[:16]


def _command(library: Path) -> list[str]:
    torch = _torch_folder()
    includes = [torch / "include", torch / "include/torch/csrc/api/include", sysconfig.get_paths()["include"]]
    return [
        "g++",
        *("-O1", "-g0", "-std=c++20", "-fPIC", "-shared", "-D_GLIBCXX_USE_CXX11_ABI=1"),
        f"-DTORCH_EXTENSION_NAME={_NAME}",
        *(f"-I{include}" for include in includes),
        str(_SOURCES / "module.cpp"),
        *("-o", str(library), f"-L{torch / 'lib'}", f"-Wl,-rpath,{torch / 'lib'}"),
        *("-ltorch", "-ltorch_cpu", "-lc10", "-ltorch_python"),
    ]


def _torch_folder() -> Path:
    """Found without importing torch, which would load the device."""
    spec = importlib.util.find_spec("torch")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def _torch_version() -> str:
    return (_torch_folder() / "version.py").read_text()


if __name__ == "__main__":
    print(build())
