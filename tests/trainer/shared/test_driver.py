from pathlib import Path

import pytest

from trainer.vertex.driver import installed, why_no_gpu

CLOSED = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023\n"
OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build  (dvs-builder)\n"


@pytest.mark.parametrize(("text", "version"), [(CLOSED, "535.104.05"), (OPEN, "580.65.06"), ("", "")])
def test_the_driver_is_what_the_kernel_tells(text: str, version: str, tmp_path: Path) -> None:
    (tmp_path / "version").write_text(text)
    assert installed(tmp_path / "version") == version
    assert installed(tmp_path / "absent") == ""


@pytest.mark.parametrize(
    ("driver", "cure"),
    [
        ("", "this machine doesn't have a driver; check that the job's machineSpec has an acceleratorType"),
        ("535.104.05", "the driver is 535.104.05; use an image with an older CUDA version"),
        ("580.65.06", "the driver 580.65.06 is new enough; check whether CUDA_VISIBLE_DEVICES"),
    ],
)
def test_without_a_gpu_the_driver_that_is_there_and_the_one_it_takes_are_named(driver: str, cure: str) -> None:
    said = why_no_gpu("13.0", driver)
    assert "CUDA 13.0, which requires driver 580 or newer" in said
    assert cure in said
