"""Lay example and framework over the project, drop what the machines cannot use, name where the template came from."""

import json
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit
from urllib.request import url2pathname

# The filter writes ASCII on one line, a quote in an answer as \", so no answer can end this string.
ANSWERS: dict[str, Any] = json.loads(r"""{{ cookiecutter | tojson }}""")
SHELL = Path(os.environ.get("PWD", "..")).resolve()  # the folder in which the command was typed
# Scheme, if it is the web's, host, repository, commit; of a host's archives branches and tags, too.
REPOSITORY = re.compile(r"git\+(?:(https?)|ssh|git)://(?:[^/@]*@)?([^/]+)/(.+?)(?:[.]git)?/?@([^@]+)")
ARCHIVE = re.compile(r"(https?)://([^/]+)/(.+?)(?:/-)?/archive/(?:refs/\w+/)?([^/]+?)(?:/[^/]+)?[.]zip")
FOLDER = re.compile(r"(?:git\+)?(file:.+?)(?:@[0-9a-f]{40,64})?")
DISTRIBUTION = "vertex-launch[plots,search]"  # for plan --chart and jobs/tuning.yaml; the trainer brings tensorboard
# A word in a host's name -> what its addresses have between repository and commit; GitHub and others have blob.
VIEWS = {"gitlab": "-/blob", "bitbucket": "src", "codeberg": "src", "gitea": "src"}


def lay(overlays: str, choice: str) -> None:
    """Move OVERLAYS/CHOICE/, which mirrors the project's folders, over the project; of "" nothing."""
    if choice:
        shutil.copytree(f"{overlays}/{choice}", ".", dirs_exist_ok=True)
    shutil.rmtree(overlays)


def drop_reducers(machine: str) -> None:
    """Delete the job with reducers for GPUs that have a network of their own: these would not use them."""
    if ANSWERS["_machines"][machine].get("fabric"):
        Path("jobs/reduction-server.yaml").unlink()


def put_license(license: str) -> None:
    """Make the chosen text the project's LICENSE."""
    if license != "none":
        shutil.copyfile(f"licenses/{license}", "LICENSE")
    shutil.rmtree("licenses")


def add_header() -> None:
    """Put the text of header.txt, a file that a fork may have, before each Python file."""
    header = Path("header.txt")
    if header.exists():
        for path in Path().rglob("*.py"):
            path.write_text(header.read_text(encoding="utf-8") + path.read_text(encoding="utf-8"), encoding="utf-8")
        header.unlink()


def requirement(answer: str, source: str) -> str:
    """Return the line that installs vertex-launch: as answered, or from where this template came."""
    typed = answer.removeprefix("vertex-launch").lstrip(" @")
    if not typed:
        return f"{DISTRIBUTION} @ {launcher(source)}"
    if "://" in typed:
        return f"{DISTRIBUTION} @ {typed}"
    if typed.endswith((".whl", ".zip", ".tar.gz")):
        return f"{DISTRIBUTION} @ {(SHELL / typed).resolve().as_uri()}"
    return f"{DISTRIBUTION}{typed if typed[0] in '<>=!~' else f'=={typed}'}"


def launcher(source: str) -> str:
    """Return the launcher's folder in the template with this address, as pip takes it."""
    is_folder = source.startswith("file:") and not source.lower().endswith(".zip")
    return f"{source}/launcher" if is_folder else f"{source}#subdirectory=launcher"


def origin(template: str) -> str:
    """Return the template's own address, as pip takes it: an archive, a commit of a repository, or a folder."""
    if template.lower().endswith(".zip"):
        return template if "://" in template else (SHELL / template).resolve().as_uri()
    if "_commit" in ANSWERS:  # of cruft, which clones folders, too
        return at_commit(template, ANSWERS["_commit"])
    folder: Path = SHELL / ANSWERS["_repo_dir"]
    if (SHELL / template).is_dir() or not (folder / ".git").is_dir():
        return folder.resolve().as_uri()
    git = ("git", f"--git-dir={folder / '.git'}")  # of the clone that cookiecutter made
    address, commit = (
        subprocess.run([*git, *words], check=True, capture_output=True, text=True).stdout.strip()
        for words in (("config", "remote.origin.url"), ("rev-parse", "HEAD"))
    )
    return at_commit(address, commit)


def at_commit(address: str, commit: str) -> str:
    """Return pip's form of a git address at one commit, without a password."""
    address = re.sub(r"^(https?://)[^/]*@", r"\1", address.removeprefix("git+"))
    if address.startswith("/"):
        address = Path(address).as_uri()
    if scp := re.fullmatch(r"([\w.-]+@[\w.-]+):(?!//)(.+)", address):
        address = f"ssh://{scp[1]}/{scp[2]}"
    return f"git+{quote(address, safe=':/@%+~')}@{commit}"


def pages(source: str) -> str:
    """Return the address of the folder with the template's pages, for pip's form of the template's own.

    A project of cruft links to the newest pages: each update would change every link to those of a commit, and conflict
    in a README that its owner has written anew. Other projects link to pages that stay as they are.
    """
    if found := REPOSITORY.fullmatch(source) or ARCHIVE.fullmatch(source):
        scheme, host, path, commit = found.groups()
        host = host if scheme else host.partition(":")[0]  # a port of ssh has no pages
        view = next((view for word, view in VIEWS.items() if word in host), "blob")
        return f"{scheme or 'https'}://{host}/{path}/{view}/{'HEAD' if '_commit' in ANSWERS else commit}"
    found = FOLDER.fullmatch(source)
    if found and Path(url2pathname(urlsplit(found[1]).path), "cookiecutter.json").exists():
        return found[1]
    return str(ANSWERS["_pages"])  # nothing can be read in a bare repository or an archive


def put(file: str, old: str, new: str) -> None:
    """Write one text in place of another in this file."""
    path = Path(file)
    path.write_text(path.read_text(encoding="utf-8").replace(old, new), encoding="utf-8")


def stays() -> bool:
    """Return whether somebody will use this folder; to compare, cruft also bakes into temporary folders."""
    here, temporary = Path.cwd(), Path(tempfile.gettempdir()).resolve()
    return "_commit" not in ANSWERS or here.is_relative_to(SHELL) or not here.is_relative_to(temporary)


def next_steps(addresses: dict[str, str]) -> str:
    """Return what the user can do next, if these files have these addresses of template and launcher."""
    text = f"Next:\n  cd {cd_target()}\n  pip install nox\n  nox -s local"
    if local := [file for file, address in addresses.items() if "file://" in address]:
        text += f"\n{' and '.join(local)} {'name' if local[1:] else 'names'} a place on this machine:"
        text += "\nbefore you share the project, write the template's git address there."
    return text


def cd_target() -> str:
    """Return what to write behind cd: relative to the folder of the user's shell, if that lies above."""
    here = Path.cwd()
    return shlex.quote(str(here.relative_to(SHELL) if here.is_relative_to(SHELL) else here))


if __name__ == "__main__":
    lay("examples", ANSWERS["example"])  # which has files for each framework
    lay("frameworks", ANSWERS["framework"])  # which has files of parts, too
    lay("parts", {"all": ".", "core": ""}[ANSWERS["parts"]])
    drop_reducers(ANSWERS["worker_machine"])
    put_license(ANSWERS["license"])
    add_header()
    source = origin(ANSWERS["_template"])
    places = {"requirements/laptop.txt": requirement(ANSWERS["launcher"], source), "README.md": pages(source)}
    put("requirements/laptop.txt", "\nvertex-launch\n", f"\n{places['requirements/laptop.txt']}\n")
    put("README.md", ANSWERS["_pages"], places["README.md"])
    if stays():
        print(next_steps(places))
