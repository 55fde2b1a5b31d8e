"""The digest by which copies of a model are compared."""

import pytest
import torch

from trainer.checkpoints.divergence import digest

TYPES = [torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.bool, torch.complex128]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", [(), (7,), (5, 7), (2, 5, 7)])
def test_a_tensor_has_one_digest_and_another_value_another(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    tensor = (torch.rand(shape) * 9 - 4).to(dtype)
    assert digest(tensor) == digest(tensor.clone())
    for place in range(tensor.numel()):
        other = tensor.clone()
        bits = other.view(torch.uint8).view(-1, other.element_size()) if shape else other.reshape(1).view(torch.uint8)
        bits.view(-1)[place * other.element_size()] ^= 1
        changed = other if shape else bits.view(dtype)
        assert digest(changed) != digest(tensor)


def test_two_numbers_that_change_places_show() -> None:
    tensor = torch.arange(35, dtype=torch.float32).view(5, 7)
    digests = {int(digest(tensor))}
    for place in range(1, 35):
        swapped = tensor.clone().flatten()
        swapped[[0, place]] = swapped[[place, 0]]
        digests.add(int(digest(swapped.view(5, 7))))
    assert len(digests) == 35


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("shape", [(2,), (4, 6), (64, 64)])
def test_signs_that_change_together_show(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    tensor = torch.randn(shape).to(dtype)
    assert digest(-tensor) != digest(tensor)


def test_a_digest_is_that_of_the_numbers_wherever_they_lie() -> None:
    tensor = torch.rand(5, 7)
    assert digest(tensor.t()) == digest(tensor.t().contiguous())
    assert digest(-torch.zeros(3)) != digest(torch.zeros(3))
