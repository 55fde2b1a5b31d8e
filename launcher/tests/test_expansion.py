import pytest

from vertex_launch.job.contract import expand

VARIABLES = {"DIR": "gs://b/model/", "STEPS": "5", "EMPTY": "", "NESTED": "$(STEPS)"}

# As Kubernetes tests its own: third_party/forked/golang/expansion/expand_test.go
CASES = [
    ("--model_dir=$(DIR)", "--model_dir=gs://b/model/"),
    ("$(STEPS)-$(STEPS)$(EMPTY)", "5-5"),
    ("$(UNKNOWN) $(STEPS)", "$(UNKNOWN) 5"),
    ("$$(STEPS)", "$(STEPS)"),
    ("$$$(STEPS)", "$5"),
    ("$$$$(STEPS)", "$$(STEPS)"),
    ("$(NESTED)", "$(STEPS)"),
    ("$STEPS ${STEPS} $ cost: 5$", "$STEPS ${STEPS} $ cost: 5$"),
    ("$(STEPS", "$(STEPS"),
    ("$()", "$()"),
    ("$($(STEPS))", "$($(STEPS))"),
    ("$(date -u)", "$(date -u)"),
]


@pytest.mark.parametrize(("text", "expected"), CASES, ids=[text for text, _ in CASES])
def test_references_are_replaced_as_kubernetes_does(text: str, expected: str) -> None:
    assert expand(text, VARIABLES) == expected
