"""Copy the selected example and framework into the project, delete unsuitable jobs, and insert the template's URL."""

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

# The filter writes one line of ASCII and escapes quotes, so an answer can't end this string.
ANSWERS: dict[str, Any] = json.loads(r"""{{ cookiecutter | tojson }}""")
SHELL = Path(os.environ.get("PWD", "..")).resolve()  # the folder in which the user ran the command
# Scheme (if http or https), host, repository, and commit; for an archive also a branch or tag.
REPOSITORY = re.compile(r"git\+(?:(https?)|ssh|git)://(?:[^/@]*@)?([^/]+)/(.+?)(?:[.]git)?/?@([^@]+)")
ARCHIVE = re.compile(r"(https?)://([^/]+)/(.+?)(?:/-)?/archive/(?:refs/\w+/)?([^/]+?)(?:/[^/]+)?[.]zip")
FOLDER = re.compile(r"(?:git\+)?(file:.+?)(?:@[0-9a-f]{40,64})?")
DISTRIBUTION = "vertex-launch[plots,search]"  # for plan --chart and jobs/tuning.yaml; the trainer requires tensorboard
# Part of a host name -> the part of its URLs between repository and commit; GitHub and other hosts use blob.
VIEWS = {"gitlab": "-/blob", "bitbucket": "src", "codeberg": "src", "gitea": "src"}


def lay(overlays: str, choice: str) -> None:
    """Copy OVERLAYS/CHOICE/ into the project, then delete OVERLAYS/. If the choice is "", only delete OVERLAYS/."""
    if choice:
        shutil.copytree(f"{overlays}/{choice}", ".", dirs_exist_ok=True)
    shutil.rmtree(overlays)


def drop_reducers(machine: str) -> None:
    """Delete the job with reducers if the machine's GPUs have their own network, because reducers would be idle."""
    if ANSWERS["_machines"][machine].get("fabric"):
        Path("jobs/reduction-server.yaml").unlink()


def put_license(license: str) -> None:
    """Copy the selected license text to LICENSE."""
    if license != "none":
        shutil.copyfile(f"licenses/{license}", "LICENSE")
    shutil.rmtree("licenses")


def add_header() -> None:
    """Insert the text of header.txt at the start of each Python file. A fork of the template can add header.txt."""
    header = Path("header.txt")
    if header.exists():
        for path in Path().rglob("*.py"):
            path.write_text(header.read_text(encoding="utf-8") + path.read_text(encoding="utf-8"), encoding="utf-8")
        header.unlink()


def requirement(answer: str, source: str) -> str:
    """Return the pip requirement for vertex-launch. The default requirement is the launcher in the template."""
    typed = answer.removeprefix("vertex-launch").lstrip(" @")
    if not typed:
        return f"{DISTRIBUTION} @ {launcher(source)}"
    if "://" in typed:
        return f"{DISTRIBUTION} @ {typed}"
    if typed.endswith((".whl", ".zip", ".tar.gz")):
        return f"{DISTRIBUTION} @ {(SHELL / typed).resolve().as_uri()}"
    return f"{DISTRIBUTION}{typed if typed[0] in '<>=!~' else f'=={typed}'}"


def launcher(source: str) -> str:
    """Return the pip URL of the launcher's folder. `source` is the pip URL of the cookiecutter template."""
    is_folder = source.startswith("file:") and not source.lower().endswith(".zip")
    return f"{source}/launcher" if is_folder else f"{source}#subdirectory=launcher"


def origin(template: str) -> str:
    """Return the template's pip URL, which refers to an archive, a commit of a repository, or a folder."""
    if template.lower().endswith(".zip"):
        return template if "://" in template else (SHELL / template).resolve().as_uri()
    if "_commit" in ANSWERS:  # from cruft, which also clones folders
        return at_commit(template, ANSWERS["_commit"])
    folder: Path = SHELL / ANSWERS["_repo_dir"]
    if (SHELL / template).is_dir() or not (folder / ".git").is_dir():
        return folder.resolve().as_uri()
    git = ("git", f"--git-dir={folder / '.git'}")  # the clone of cookiecutter
    address, commit = (
        subprocess.run([*git, *words], check=True, capture_output=True, text=True).stdout.strip()
        for words in (("config", "remote.origin.url"), ("rev-parse", "HEAD"))
    )
    return at_commit(address, commit)


def at_commit(address: str, commit: str) -> str:
    """Return the pip URL for one commit of a git repository. The pip URL doesn't contain a password."""
    address = re.sub(r"^(https?://)[^/]*@", r"\1", address.removeprefix("git+"))
    if address.startswith("/"):
        address = Path(address).as_uri()
    if scp := re.fullmatch(r"([\w.-]+@[\w.-]+):(?!//)(.+)", address):
        address = f"ssh://{scp[1]}/{scp[2]}"
    return f"git+{quote(address, safe=':/@%+~')}@{commit}"


def pages(source: str) -> str:
    """Return the URL of the folder with the template's documentation. `source` is the template's pip URL.

    If cruft generated the project, the URL refers to the latest pages. A URL with a commit would change at each update
    and conflict with the owner's changes to the README. Other projects link to the pages of the template's commit.
    """
    if found := REPOSITORY.fullmatch(source) or ARCHIVE.fullmatch(source):
        scheme, host, path, commit = found.groups()
        host = host if scheme else host.partition(":")[0]  # an SSH port doesn't serve pages
        view = next((view for word, view in VIEWS.items() if word in host), "blob")
        return f"{scheme or 'https'}://{host}/{path}/{view}/{'HEAD' if '_commit' in ANSWERS else commit}"
    found = FOLDER.fullmatch(source)
    if found and Path(url2pathname(urlsplit(found[1]).path), "cookiecutter.json").exists():
        return found[1]
    return str(ANSWERS["_pages"])  # a bare repository or an archive has no readable pages


def put(file: str, old: str, new: str) -> None:
    """Replace a text in a file of the project."""
    path = Path(file)
    path.write_text(path.read_text(encoding="utf-8").replace(old, new), encoding="utf-8")


def stays() -> bool:
    """Return whether the user keeps this project. cruft also generates temporary projects for comparison."""
    here, temporary = Path.cwd(), Path(tempfile.gettempdir()).resolve()
    return "_commit" not in ANSWERS or here.is_relative_to(SHELL) or not here.is_relative_to(temporary)


def next_steps(addresses: dict[str, str]) -> str:
    """Return the user's next steps. `addresses` maps files to the template and launcher URLs in these files."""
    text = f"Next:\n  cd {cd_target()}\n  pip install nox\n  nox -s local"
    if local := [file for file, address in addresses.items() if "file://" in address]:
        text += f"\n{' and '.join(local)} {'contain' if local[1:] else 'contains'} a path on this machine."
        text += "\nBefore you share the project, replace this path with the template's git URL."
    return text


def cd_target() -> str:
    """Return the argument for cd. If possible, the path is relative to the current folder of the user's shell."""
    here = Path.cwd()
    return shlex.quote(str(here.relative_to(SHELL) if here.is_relative_to(SHELL) else here))


if __name__ == "__main__":
    lay("examples", ANSWERS["example"])  # contains files for each framework
    lay("frameworks", ANSWERS["framework"])  # also contains parts
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
