"""Builds the passthrough shim. The install goes on without it: the mount then reads local files through the page cache."""

import shlex
import subprocess

from setuptools import Extension, find_packages, setup


def pkg_config(*flags: str) -> list[str]:
    """Return what pkg-config says about libfuse 3, or nothing where either is missing (the extension is optional)."""
    try:
        said = subprocess.run(["pkg-config", *flags, "fuse3"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return []
    return shlex.split(said.stdout)


setup(
    packages=[*find_packages(include=["vfs", "vfs.*"]), "vfs.shipped_policies"],
    ext_modules=[
        Extension(
            "vfs.kernel._passthrough",
            sources=["vfs/kernel/_passthrough.c"],
            define_macros=[("_FILE_OFFSET_BITS", "64")],
            extra_compile_args=pkg_config("--cflags"),
            extra_link_args=[*pkg_config("--libs"), "-ldl"],  # of its own before glibc 2.34
            optional=True,
        )
    ],
)
