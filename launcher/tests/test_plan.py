"""What `vertex-launch plan` finds, from formulas to the words of its verdict."""

import io
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from google.cloud.aiplatform_v1.types import HyperparameterTuningJob
from rich.console import Console
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from launcher.tests.casebook import GONE, P0, P2, edited, write
from launcher.tests.running import SOURCE, while_fresh
from vertex_launch.errors import FaultError
from vertex_launch.facts import catalog
from vertex_launch.job.spec import Job, TuningJob, load, parse
from vertex_launch.local.running import containers
from vertex_launch.plan import failures, memory, planner, pools, reducers, report, scaling, workload
from vertex_launch.plan.allreduce_cost import Machines
from vertex_launch.plan.apply import apply
from vertex_launch.plan.memory import RESERVED
from vertex_launch.plan.planner import Compute, Plan
from vertex_launch.plan.reducers import OVERLAP, break_even_compute, step_seconds
from vertex_launch.plan.workload import Workload
from vertex_launch.settings import Settings

SETTINGS = Settings("demo", "us-central1", "demo-data", "us-central1-docker.pkg.dev/demo/training/trainer:1")
KNOWN = catalog.standard()
BERT_LARGE = 1.36e9  # bytes of gradients: 340 million parameters in float32
V100, A100, H100, L4 = "NVIDIA_TESLA_V100", "NVIDIA_TESLA_A100", "NVIDIA_H100_80GB", "NVIDIA_L4"
CARD = KNOWN.accelerators[A100]

WORKLOAD = Workload(
    parameters=300_000_000,
    parameter_bytes=1_200_000_000,
    gradient_bytes=1_200_000_000,
    optimizer_bytes=2_400_000_000,
    flops_per_sample=350 * 10**9,
    precision="bfloat16",
    weight_copy_bytes=600_000_000,
    activation_bytes_per_sample=300_000_000,
    activation_bytes_per_sample_float32=600_000_000,
    global_batch=1536,
    micro_batches=1,
)


def job(
    machine_type: str, accelerator: str, gpus: int, count: int, reducer_count: int = 0, strategy: str = "STANDARD"
) -> Job:
    """So many machines that train; with reducers, as pool 2 of n1-highcpu-16."""
    machine = {"machineType": machine_type, "acceleratorType": accelerator, "acceleratorCount": gpus}
    task = {"imageUri": SETTINGS.image, "command": ["python", "-m", "trainer.task"]}
    pools: list[Any] = [{"machineSpec": machine, "replicaCount": 1, "containerSpec": task}]
    if count > 1:
        pools.append({"machineSpec": machine, "replicaCount": count - 1, "containerSpec": task})
    if reducer_count:
        image = KNOWN.reduction_server_image("us-central1")
        spec = {"machineSpec": {"machineType": "n1-highcpu-16"}, "replicaCount": reducer_count}
        pools.append({**spec, "containerSpec": {"imageUri": image}})
    document = {"workerPoolSpecs": pools, "scheduling": {"strategy": strategy}}
    return Job(Path("jobs/run.yaml"), "run", parse(yaml.safe_dump(document), "run.yaml"))


def whole(one: Job | TuningJob, settings: Settings, work: Workload | None, **known: Any) -> Plan:
    """The plan of a job of which nothing is missing."""
    found = planner.plan(one, settings, work, **known)
    assert isinstance(found, Plan)
    return found


def planned(
    one: Job | TuningJob, step_seconds: float | None = 0.2, gradient_bytes: float = BERT_LARGE, image_says: str = ""
) -> Plan:
    compute = None if step_seconds is None else Compute(step_seconds, "measured")
    return whole(one, SETTINGS, None, gradient_bytes=gradient_bytes, compute=compute, image_says=image_says)


# How many machines of which kind, and how many reducers the documentation or a sample gives them.
EXAMPLES = [
    ("n1-highmem-96", V100, 8, 5, 16, "documented"),
    ("a2-megagpu-16g", A100, 16, 8, 25, "documented"),
    ("n1-highmem-96", V100, 8, 2, 7, "the documented rule for Google's Horovod sample, which rounds down to 6"),
    ("n1-standard-16", V100, 2, 3, 3, "the documented rule for Google's notebook, which has 4"),
    ("a2-highgpu-4g", A100, 4, 2, 4, "as in Google's notebook"),
]


@pytest.mark.parametrize(("kind", "gpu", "gpus", "count", "wanted"), [row[:5] for row in EXAMPLES])
def test_reducers_are_sized_by_the_documented_rule(kind: str, gpu: str, gpus: int, count: int, wanted: int) -> None:
    sizing = planned(job(kind, gpu, gpus, count)).advised.sizing
    assert (sizing.count, sizing.machine_type) == (wanted, "n1-highcpu-16")


def test_the_least_costly_type_of_reducers_wins() -> None:
    own = replace(SETTINGS, prices={"c2-standard-16": 0.1})
    found = whole(job("a2-highgpu-8g", A100, 8, 8), own, None, gradient_bytes=BERT_LARGE)
    assert (found.advised.sizing.machine_type, found.advised.sizing.count) == ("c2-standard-16", 25)


def test_many_a100_machines_gain_from_reducers() -> None:
    verdict = planned(job("a2-highgpu-8g", A100, 8, 8)).advised.verdict
    assert verdict.pays is True
    assert verdict.text.startswith(
        "Yes: 25 x n1-highcpu-16 shorten the all-reduce from 224 ms to 114 ms, and a step by 31%"
    )
    assert verdict.usd_per_saved_hour is not None
    assert verdict.usd_per_saved_hour < 0


def test_a_ring_of_two_gpus_gains_nothing() -> None:
    verdict = planned(job("g2-standard-4", L4, 1, 2)).advised.verdict
    assert verdict.pays is False
    assert "in a ring of two GPUs, each machine already sends the gradients (1.36 GB) only once" in verdict.text


def test_reducers_that_the_image_cannot_use_do_not_pay() -> None:
    says = "NCCL can't load libnccl-net.so: reducers would be idle but billed; install a newer package"
    verdict = planned(job("a2-highgpu-8g", A100, 8, 8), image_says=says).advised.verdict
    assert (verdict.pays, verdict.text) == (False, f"No: according to the local image, {says}.")
    says = "NCCL can load the plug-in of the reducers, net v4 to v6, CollNet v6"
    assert planned(job("a2-highgpu-8g", A100, 8, 8), image_says=says).advised.verdict.pays


DOCKER = """#!/bin/sh
[ "$*" = 'image inspect --format={{index .Config.Labels "reducers"}} image:1' ] || exit 1
echo "NCCL can't find the plug-in: reducers would be idle but billed; install it"
"""


def test_what_the_image_s_build_has_said_is_read_from_its_label(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert containers.label("image:1", "reducers") == ""  # there is no client
    (tmp_path / "docker").write_text(DOCKER)
    (tmp_path / "docker").chmod(0o755)
    assert containers.label("image:1", "reducers").endswith("reducers would be idle but billed; install it")
    assert containers.label("image:2", "reducers") == ""


@pytest.mark.parametrize(
    ("kind", "gpu", "gpus", "reason"),
    [
        (
            "a2-megagpu-16g",
            A100,
            16,
            "NCCL uses reducers on machines with at most 8 GPUs, but an a2-megagpu-16g has 16",
        ),
        ("a3-highgpu-4g", H100, 4, "an a3-highgpu-4g has its own network plug-in, and NCCL loads only one"),
    ],
)
def test_reducers_that_nccl_passes_by_do_not_pay(kind: str, gpu: str, gpus: int, reason: str) -> None:
    verdict = planned(job(kind, gpu, gpus, 8)).advised.verdict
    assert (verdict.pays, verdict.text) == (False, f"No: {reason}, so reducers would be billed but idle.")


def test_gpus_with_a_fabric_of_their_own_gain_nothing() -> None:
    verdict = planned(job("a3-highgpu-8g", H100, 8, 8)).advised.verdict
    assert verdict.pays is False
    assert "their own 800 Gbps network" in verdict.text


def text_of(found: planner.Needs) -> str:
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(report.report(found))
    return console.export_text()


LARGE = ("a3-highgpu-8g", "a3-megagpu-8g", "a3-ultragpu-8g", "a4-highgpu-8g", "a4x-highgpu-4g")


@pytest.mark.parametrize("kind", LARGE)
def test_no_plan_counts_on_gpudirect_which_the_image_must_bring(kind: str) -> None:
    machine = KNOWN.machines[kind]
    ((gpu, (gpus,)),) = machine.gpus.items()
    assert machine.gbps
    assert machine.fabric_gbps
    found = planned(job(kind, gpu, gpus, 4), step_seconds=0.01)
    ring, own = found.all_reduce, found.advised.all_reduce.gpudirect
    assert own
    assert ring.seconds / own.seconds == pytest.approx(machine.fabric_gbps / machine.gbps)
    shown = text_of(found)
    assert (
        "for GPUDirect's NCCL plug-in.\nThe template's image doesn't contain this plug-in, so times assume TCP" in shown
    )
    assert shown.index(f"ring of {4 * gpus} ") < shown.index("ring with GPUDirect's plug-in")


@pytest.mark.parametrize(
    ("one", "seconds", "size", "words"),
    [
        (job("a2-highgpu-8g", A100, 8, 1), 0.2, BERT_LARGE, "with one machine, gradients don't cross the network"),
        (job("n1-standard-8", "ACCELERATOR_TYPE_UNSPECIFIED", 0, 3), 0.2, BERT_LARGE, "reduction servers require GPUs"),
        (job("a2-highgpu-8g", A100, 8, 8), 2.0, BERT_LARGE, "the job is compute-bound"),
        (job("a2-highgpu-8g", A100, 8, 8), 0.2, 5e7, "too small for reducers: a ring all-reduces 50 MB in 8.24 ms"),
        (job("a2-highgpu-8g", A100, 8, 8), 1e-6, 1e6, "the latency of 126 hops in a ring of 64 GPUs is about 2.52 ms"),
    ],
    ids=["one machine", "no GPUs", "bound by computing", "small gradients", "tiny gradients"],
)
def test_an_honest_no_says_why(one: Job, seconds: float, size: float, words: str) -> None:
    verdict = planned(one, seconds, size).advised.verdict
    assert verdict.pays is False
    assert words in verdict.text


def test_the_reducers_in_the_file_are_planned_beside_those_advised() -> None:
    found = planned(job("a2-highgpu-8g", A100, 8, 8, reducer_count=20))
    assert found.present
    assert (found.present.sizing.count, found.advised.sizing.count) == (20, 25)
    assert found.all_reduce == found.present.all_reduce.reducers
    assert found.all_reduce.seconds == pytest.approx(found.advised.all_reduce.reducers.seconds * 8 * 100 / (20 * 32))


def test_reducers_of_another_type_have_its_bandwidth() -> None:
    one = job("a2-highgpu-8g", A100, 8, 8, reducer_count=10)
    one.spec.worker_pool_specs[2].machine_spec.machine_type = "n1-highcpu-96"
    found = planned(one)
    assert found.present
    assert found.present.sizing.gbps == KNOWN.network_gbps("n1-highcpu-96")


def test_too_few_reducers_are_slower_than_the_ring() -> None:
    found = planned(job("a2-highgpu-8g", A100, 8, 8, reducer_count=3))
    assert found.present
    assert found.present.verdict.pays is False
    assert found.present.verdict.text.startswith(
        "No: 3 x n1-highcpu-16 aren't enough: the all-reduce takes 949 ms with them"
    )
    assert found.advised.verdict.pays is True


@pytest.mark.parametrize(
    ("one", "image_says"),
    [
        (job("a2-megagpu-16g", A100, 16, 8, reducer_count=25), ""),
        (job("a3-highgpu-8g", H100, 8, 8, reducer_count=25), ""),
        (
            job("a2-highgpu-8g", A100, 8, 8, reducer_count=25),
            "NCCL can't find the plug-in: they would be idle but billed",
        ),
    ],
    ids=["too many GPUs", "a network of their own", "by the image"],
)
def test_reducers_that_would_be_idle_make_no_job_faster(one: Job, image_says: str) -> None:
    found = whole(one, SETTINGS, WORKLOAD, compute=Compute(0.2, "measured"), image_says=image_says)
    assert found.present
    assert found.present.verdict.pays is False
    assert found.all_reduce == found.present.all_reduce.ring != found.present.all_reduce.reducers
    assert [curve.way for curve in found.curves] == ["ring", "hierarchical ring"]


def test_without_reducers_in_the_file_there_is_one_option() -> None:
    found = planned(job("a2-highgpu-8g", A100, 8, 8))
    assert (found.present, found.options) == (None, (found.advised,))
    assert found.all_reduce == found.advised.all_reduce.ring


def mixed(first: int, others: int) -> Job:
    """A chief with so many L4, and three workers with so many others."""
    kinds = {2: "g2-standard-24", 4: "g2-standard-48"}
    one = job(kinds[first], L4, first, 4)
    machine = one.spec.worker_pool_specs[1].machine_spec
    machine.machine_type, machine.accelerator_count = kinds[others], others
    return one


def test_a_ring_goes_through_every_gpu_of_machines_that_differ() -> None:
    found = whole(mixed(2, 4), SETTINGS, WORKLOAD)
    assert found.machines.members == 14
    assert found.machines.gbps == KNOWN.network_gbps("g2-standard-24", L4, 2)
    assert found.advised.all_reduce.ring.bytes == pytest.approx(2 * 13 / 14 * WORKLOAD.gradient_bytes)
    assert found.curves == ()  # more machines of which kind?
    assert found.memory
    assert found.memory.activations == 110 * WORKLOAD.activation_bytes_per_sample  # of 1536 samples on 14 GPUs


def test_of_gpus_that_differ_the_slowest_is_waited_for() -> None:
    one = job("a2-highgpu-1g", A100, 1, 2)
    slower = job("g2-standard-8", L4, 1, 2)
    one.spec.worker_pool_specs[1].machine_spec = slower.spec.worker_pool_specs[1].machine_spec
    assert whole(one, SETTINGS, WORKLOAD).compute == whole(slower, SETTINGS, WORKLOAD).compute


def test_a_job_is_set_beside_one_of_its_machines_alone() -> None:
    found = whole(job("a2-highgpu-8g", A100, 8, 8, reducer_count=25), SETTINGS, WORKLOAD)
    assert found.compute
    assert found.here
    assert found.alone
    assert found.alone == pytest.approx(1536 / 8 / found.compute.seconds)
    assert found.here.samples_per_second == pytest.approx(8 * found.alone * found.here.efficiency)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.3, "they are slower than one"), (0.6, "they aren't faster than one"), (2.0, "2 times the speed")],
)
def test_machines_that_lose_are_said_to(seconds: float, words: str) -> None:
    two = job("g2-standard-4", L4, 1, 2)
    found = whole(two, SETTINGS, WORKLOAD, compute=Compute(seconds, "measured"))
    (sentence,) = report.about_the_speed(found)
    assert words in sentence


@pytest.mark.parametrize(("kind", "gpu", "gpus"), [("g2-standard-24", L4, 2), ("a2-highgpu-8g", A100, 8)])
def test_reducers_are_never_advised_for_machines_that_lose_to_one_of_them(kind: str, gpu: str, gpus: int) -> None:
    for count, present, seconds in itertools.product((2, 5), (0, 1), (0.001, 0.1, 0.2, 0.5)):
        one = job(kind, gpu, gpus, count, reducer_count=present)
        found = whole(one, SETTINGS, WORKLOAD, compute=Compute(seconds, "measured"))
        (sentence,) = report.about_the_speed(found)
        assert found.here
        assert found.alone
        slow = found.here.samples_per_second < found.alone / 0.95
        assert slow == ("than one" in sentence or "the file doesn't have enough reducers" in sentence)
        pays = any(option.verdict.pays for option in found.options)
        assert not pays or not slow or "doesn't have enough" in sentence


def test_two_machines_that_lose_to_one_are_not_mended_by_reducers() -> None:
    found = planned(job("g2-standard-24", L4, 2, 2))
    assert (
        found.advised.verdict.text == "No: even with 2 x n1-highcpu-16, the 2 machines aren't faster than one machine."
    )
    (sentence,) = report.about_the_speed(found)  # without a batch, which only a trainer knows
    assert sentence == "These 2 machines compared with one machine: they are slower than one machine."


def test_reducers_that_make_machines_beat_one_are_a_question_of_time() -> None:
    found = planned(job("g2-standard-24", L4, 2, 4), step_seconds=0.15)
    assert found.over_one
    assert found.over_one < 0.95
    verdict = found.advised.verdict
    assert verdict.pays is None
    assert verdict.text.startswith("Only if the time saved is worth the price")
    assert "one machine is as fast as the ring" in verdict.text


def test_a_search_is_planned_with_all_trials_that_run_at_once() -> None:
    one = job("a2-highgpu-8g", A100, 8, 2)
    spec = HyperparameterTuningJob(max_trial_count=6, parallel_trial_count=2, trial_job_spec=one.spec)
    found, trial = planned(TuningJob(one.path, "run", spec)), planned(one)
    assert found.price
    assert trial.price
    assert found.price.usd == 2 * trial.price.usd
    assert [quota.amount for quota in found.quotas] == [2 * quota.amount for quota in trial.quotas]
    assert found.trials == pools.Trials(count=6, at_once=2)
    assert found.advised.verdict.pays is False
    assert "which reject them (trial-reducers)" in found.advised.verdict.text


def test_flex_start_leaves_no_room_for_reducers() -> None:
    one = job("a2-highgpu-8g", A100, 8, 8, strategy="FLEX_START")
    assert "FLEX_START requires the same machine type in every pool" in planned(one).advised.verdict.text


def test_without_the_time_to_compute_it_depends_on_that() -> None:
    verdict = planned(job("a2-highgpu-8g", A100, 8, 8), step_seconds=None).advised.verdict
    assert verdict.pays is None
    assert verdict.break_even_compute == pytest.approx(0.308, abs=1e-3)
    assert "and 308 ms." in verdict.text


def test_what_computing_hides_costs_no_time() -> None:
    assert step_seconds(compute=3.0, communication=2.0) == 3.0
    assert step_seconds(compute=3.0, communication=2.5) == 3.5
    assert step_seconds(compute=0.0, communication=2.5) == 2.5


@pytest.mark.parametrize(("machines_usd", "reducers_usd"), [(270.0, 16.3), (4.0, 3.0), (100.0, 1.0)])
def test_at_the_break_even_a_step_costs_the_same_both_ways(machines_usd: float, reducers_usd: float) -> None:
    ring, reduced = 0.224, 0.114
    compute = break_even_compute(ring, reduced, machines_usd, reducers_usd)
    by_ring = machines_usd * step_seconds(compute, ring)
    by_reducers = (machines_usd + reducers_usd) * step_seconds(compute, reduced)
    assert by_ring == pytest.approx(by_reducers)
    assert 0 < compute < ring / OVERLAP


def test_reducers_that_cost_more_than_they_save_at_best_never_pay() -> None:
    assert break_even_compute(0.2, 0.1, machines_usd=1.0, reducers_usd=1.1) == 0


def test_a_job_is_priced_with_its_gpus_and_its_reducers() -> None:
    price = planned(job("a2-highgpu-8g", A100, 8, 3, reducer_count=10)).price
    assert price is not None
    assert price.usd == pytest.approx(3 * 33.795 + 10 * 0.6518, rel=1e-4)
    assert price.certainty == "inferred"


def test_a_job_with_one_unknown_price_has_none() -> None:
    found = planned(job("g4-standard-48", "NVIDIA_RTX_PRO_6000", 1, 2))
    assert found.price is None
    assert found.curves == ()


@pytest.mark.parametrize(
    ("one", "uncertain"),
    [
        (job("a2-highgpu-8g", A100, 8, 3, reducer_count=10), ()),
        (job("n1-highmem-96", V100, 8, 2), ()),
        (job("n1-standard-16", V100, 2, 3), ("the network of n1-standard-16 with 2 x NVIDIA_TESLA_V100",)),
        (job("g2-standard-4", L4, 1, 3), ("the price of g2-standard-4",)),
    ],
)
def test_a_plan_says_what_is_uncertain(one: Job, uncertain: tuple[str, ...]) -> None:
    assert planned(one).uncertain == uncertain


def test_quota_is_counted_by_metric_over_all_pools() -> None:
    quotas = pools.quotas(job("a2-highgpu-8g", A100, 8, 3, reducer_count=10), SETTINGS)
    prefix = "aiplatform.googleapis.com/custom_model_training_"
    assert {quota.metric.removeprefix(prefix): quota.amount for quota in quotas} == {
        "nvidia_a100_gpus": 24,
        "a2_cpus": 288,
        "cpus": 160,
    }


def test_the_quota_of_tpus_counts_the_chips_of_their_slice() -> None:
    one = job("ct5lp-hightpu-4t", "ACCELERATOR_TYPE_UNSPECIFIED", 0, 1)
    one.spec.worker_pool_specs[0].machine_spec.tpu_topology = "4x4"
    (quota,) = pools.quotas(one, SETTINGS)
    assert (quota.amount, quota.metric) == (16, "aiplatform.googleapis.com/custom_model_training_tpu_v5e")


def test_a_spot_job_uses_up_preemptible_quota() -> None:
    one = job("a2-highgpu-8g", A100, 8, 2, strategy="SPOT")
    assert all("custom_model_training_preemptible_" in quota.metric for quota in pools.quotas(one, SETTINGS))


def test_memory_is_what_a_gpu_holds_of_the_model_and_its_batch() -> None:
    found = memory.memory(WORKLOAD, gpus=64, card=CARD)
    assert found.total == 1.2e9 + 0.6e9 + 1.2e9 + 2.4e9 + 24 * 0.3e9 + RESERVED
    assert found.fits


def test_gpus_without_bfloat16_keep_larger_activations_and_no_copies() -> None:
    found = memory.memory(WORKLOAD, gpus=64, card=KNOWN.accelerators[V100])
    assert (found.parameters, found.activations) == (1.2e9, 24 * 0.6e9)


def test_too_large_a_batch_is_cured_by_micro_batches_that_fit() -> None:
    assert not memory.memory(WORKLOAD, gpus=8, card=CARD).fits
    remedy = memory.remedy(WORKLOAD, gpus=8, card=CARD)
    assert remedy.startswith("the job would fit with --micro-batches 2")
    assert memory.memory(replace(WORKLOAD, micro_batches=2), gpus=8, card=CARD).fits


def test_too_large_a_model_is_cured_by_sharding_it_or_not_at_all() -> None:
    large = replace(WORKLOAD, parameter_bytes=20 * 10**9, gradient_bytes=20 * 10**9, optimizer_bytes=40 * 10**9)
    assert "sharded across all 64 GPUs, with 1.3 GB on each" in memory.remedy(large, 64, CARD)
    assert "sharding across all GPUs isn't enough" in memory.remedy(large, 2, CARD)


def test_computing_is_estimated_from_the_gpus_peak() -> None:
    found = whole(job("a2-highgpu-8g", A100, 8, 8), SETTINGS, WORKLOAD, mfu=0.5)
    assert found.compute is not None
    assert found.compute.seconds == pytest.approx(350e9 * 24 / (312e12 * 0.5))
    assert "50% of 312 TFLOPS, the peak of NVIDIA_TESLA_A100 in bfloat16" in found.compute.how


@pytest.mark.parametrize(("shrink", "counts"), [(1, True), (20, False)])
def test_an_estimate_counts_only_if_it_is_longer_than_starting_kernels(shrink: int, counts: bool) -> None:
    short = replace(WORKLOAD, flops_per_sample=WORKLOAD.flops_per_sample // shrink)
    found = whole(job("a2-highgpu-8g", A100, 8, 8, reducer_count=20), SETTINGS, short, gradient_bytes=BERT_LARGE)
    assert found.compute
    assert (found.compute.seconds > 0.005, found.known_compute is not None, bool(found.curves)) == (counts,) * 3
    if not counts:
        assert [option.verdict.pays for option in found.options] == [None, None]
        assert found.advised.verdict.text.startswith("It depends: ")


def test_a_measurement_counts_however_short_it_is() -> None:
    found = planned(job("a2-highgpu-8g", A100, 8, 8), step_seconds=0.0005)
    assert found.known_compute == 0.0005


LOAD = scaling.Load(samples=192, compute=0.2, gradient_bytes=BERT_LARGE, usd=33.8)
REDUCER = reducers.sizing("n1-highcpu-16", 1, Machines(8, 8, 100), KNOWN)


def test_one_machine_is_the_measure_of_efficiency() -> None:
    for curve in scaling.curves(LOAD, Machines(8, 8, 100), REDUCER):
        assert curve.points[0].efficiency == 1
        assert curve.points[0].samples_per_second == pytest.approx(960)
        assert curve.points[0].usd_per_million == pytest.approx(33.8 / 3600 / 960 * 1e6)
        assert [point.machines for point in curve.points] == [2**power for power in range(11)]


def test_with_reducers_efficiency_does_not_fall_with_the_number_of_machines() -> None:
    *_, reduced = scaling.curves(LOAD, Machines(8, 8, 100), REDUCER)
    assert {round(point.efficiency, 9) for point in reduced.points[1:]} == {round(reduced.points[1].efficiency, 9)}


def test_a_ring_loses_efficiency_until_it_sends_everything_twice() -> None:
    ring, *_ = scaling.curves(LOAD, Machines(8, 1, 100), REDUCER)
    efficiencies = [point.efficiency for point in ring.points]
    assert efficiencies == sorted(efficiencies, reverse=True)
    twice = 8 * 2 * BERT_LARGE / 100e9 / (1408 / 1474)
    assert efficiencies[-1] == pytest.approx(0.2 / step_seconds(0.2, twice), rel=1e-3)


def test_the_knee_is_the_last_point_that_keeps_its_efficiency() -> None:
    ring, *_ = scaling.curves(replace(LOAD, gradient_bytes=1.0e9), Machines(8, 1, 100), REDUCER)
    after = [point for point in ring.points if point.machines > ring.knee.machines]
    assert ring.knee.efficiency >= 0.9
    assert all(point.efficiency < 0.9 for point in after)


def test_of_machines_of_an_unknown_network_only_the_needs_are_known() -> None:
    found = planner.plan(job("c9-standard-8", "ACCELERATOR_TYPE_UNSPECIFIED", 0, 2), SETTINGS, WORKLOAD)
    assert not isinstance(found, Plan)
    assert (
        found.missing
        == "the network speed of 1 x c9-standard-8 is unknown; set [machines.c9-standard-8] in vertex.toml"
    )


# Three machines, a step of 1 s and a checkpoint every 200 steps; the time and the price are of a long run.
RUN = failures.Run(machines=3, seconds=500 * 3600, step_seconds=1, checkpoint_every=200, usd=30)


@pytest.mark.parametrize(
    ("run", "restart", "elastic"),
    [
        (RUN, 600 + 100, 1 + 600 * 5 / 9),
        (replace(RUN, machines=8), 600 + 100, 1 + 600 * 15 / 64),
        (replace(RUN, machines=1), 600 + 100, 1 + 600),  # nobody is left while the machine starts
        (replace(RUN, step_seconds=10), 600 + 1000, 10 + 600 * 5 / 9),
        (replace(RUN, seconds=100), 600 + 50, 1 + 600 * 5 / 9),  # a run that ends before its first checkpoint
    ],
)
def test_a_lost_machine_costs_a_start_and_half_of_the_steps_between_two_checkpoints_or_one_step_and_some_speed(
    run: failures.Run, restart: float, elastic: float
) -> None:
    found = failures.failures(run, hours_between=1000)
    assert (found.restart_seconds, found.elastic_seconds) == pytest.approx((restart, elastic))
    assert found.count == pytest.approx(run.machines * run.seconds / 3600 / 1000)


@pytest.mark.parametrize(
    ("run", "hours", "pays", "words"),
    [
        (replace(RUN, checkpoint_every=20000), 1000, False, "about 4 h 16 min and $128.32 per run, which is 0.9%"),
        (replace(RUN, checkpoint_every=40000), 1000, True, "Yes: --strategy elastic would save about 8 h 26 min"),
        (replace(RUN, checkpoint_every=40000, usd=None), 1000, True, "8 h 26 min per run, which is 1.7% of the run."),
        (replace(RUN, checkpoint_every=40000, is_offered=False), 1000, True, "An optional part of PyTorch projects"),
        (RUN, 1000, False, "No: --strategy elastic would save about 9 min 8 s and $4.57 per run, which is 0.0% of"),
        (RUN, 30_000, False, "No: only one in 20 such runs loses a machine."),
        (replace(RUN, machines=1), 10, False, "No: if the only machine fails, no machine can continue."),
        (replace(RUN, fits=False), 10, False, "No: --strategy elastic requires that the model fits on one GPU."),
        (replace(RUN, step_seconds=1000, checkpoint_every=1), 10, False, "wouldn't save time."),
    ],
)
def test_elastic_pays_if_runs_are_long_and_a_failure_is_dear(
    run: failures.Run, hours: float, pays: bool, words: str
) -> None:
    verdict = failures.failures(run, hours).verdict
    assert verdict.pays is pays
    assert words in verdict.text


FILE = """# A job.
workerPoolSpecs:
  - {machineSpec: {machineType: a2-highgpu-8g}, replicaCount: 1}   # the chief
  - {}
  - replicaCount: 3 # too few
    machineSpec:
      machineType: "n1-standard-16"  # dear
    containerSpec: {imageUri: us-docker.pkg.dev/vertex-ai-restricted/training/reductionserver:latest}
"""
SIZING = reducers.Sizing("n1-highcpu-16", 25, 32.0, None, 12.5)


def test_two_values_change_and_every_other_byte_stays(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_bytes(FILE.replace("\n", "\r\n").encode())
    one = load(path)
    assert isinstance(one, Job)
    apply(one, SIZING)
    wanted = FILE.replace("replicaCount: 3", "replicaCount: 25").replace("n1-standard-16", "n1-highcpu-16")
    assert path.read_bytes() == wanted.replace("\n", "\r\n").encode()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "workerPoolSpecs: [{replicaCount: 1}]",
            "there is no reducer pool; add machineSpec: {machineType: n1-highcpu-16}, replicaCount: 25, and a",
        ),
        (
            FILE.replace("replicaCount: 3 # too few", "diskSpec: {}"),
            r"\[2\].replicaCount: the key isn't in the file; add this key",
        ),
        (
            "workerPoolSpecs:\n- machineSpec: &m {machineType: n1-standard-8}\n  replicaCount: 1\n- {}\n"
            "- {machineSpec: *m, replicaCount: 1, containerSpec: {imageUri: us/reductionserver}}",
            "this pool shares a value with another pool through a YAML anchor; replace the alias",
        ),
    ],
)
def test_what_cannot_be_applied_leaves_the_file_alone(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(text)
    one = load(path)
    assert isinstance(one, Job)
    with pytest.raises(FaultError, match=words):
        apply(one, SIZING)
    assert path.read_text() == text
    assert [found.name for found in tmp_path.iterdir()] == ["job.yaml"]


def draw(found: Plan, path: Path) -> None:
    from vertex_launch.plan import chart  # which takes a second to import; few tests draw

    chart.save(found, path)


def test_the_scaling_curves_become_a_picture(tmp_path: Path) -> None:
    found = whole(job("a2-highgpu-8g", A100, 8, 8), SETTINGS, WORKLOAD)
    draw(found, tmp_path / "plan.png")
    draw(found, tmp_path / "plan.svg")
    assert (tmp_path / "plan.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (tmp_path / "plan.svg").read_text()


@pytest.mark.parametrize(
    ("one", "words"),
    [
        (job("a2-highgpu-8g", A100, 8, 8), "Then one GPU per machine joins a ring."),
        (
            job("g2-standard-4", L4, 1, 8),
            "With at most one GPU per machine, a hierarchical ring is the same as a flat ring.",
        ),
    ],
)
def test_table_and_picture_say_what_a_hierarchical_ring_is(tmp_path: Path, one: Job, words: str) -> None:
    found = whole(one, SETTINGS, WORKLOAD)
    draw(found, tmp_path / "plan.svg")
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(report.report(found))
    assert words in console.export_text()
    assert words in (tmp_path / "plan.svg").read_text()  # in the comment above each text, which is drawn as paths


# The command, as a user types it.


def launch(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "vertex_launch", "plan", *arguments]
    env = os.environ | {"PYTHONPATH": str(SOURCE)}
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=120, check=False)


VERTEX_TOML = """\
project = "demo"
region = "us-central1"
bucket = "demo-data"
image = "us-central1-docker.pkg.dev/demo/training/trainer:1"
[commands]
"us-central1-docker.pkg.dev/demo/training/trainer:1" = ["python", "-m", "trainer.task"]
"""


@pytest.fixture
def folder(tmp_path: Path, project: Path) -> Path:
    """A folder with the job files of a generated project, and with its settings and house rules, if it has some."""
    shutil.copytree(project / "jobs", tmp_path / "jobs")
    for path in (project / "vertex.toml", *project.glob("*.py")):
        shutil.copy(path, tmp_path)
    return tmp_path


def reducing(folder: Path, reducer_count: int) -> Path:
    """A job of four machines with 8 GPUs each, with so many reducers; not every project has one of its own."""
    (folder / "vertex.toml").write_text(VERTEX_TOML)
    return write(folder, edited({f"{P2}.replicaCount": reducer_count}))


GIVEN = ("--gradient-bytes", "1.36e9", "--step-seconds", "0.2")


def test_a_plan_is_tables_that_fit_a_terminal(tmp_path: Path) -> None:
    shown = launch(reducing(tmp_path, 13).name, *GIVEN, folder=tmp_path)
    assert shown.returncode == 0, shown.stderr
    table = [line for line in shown.stdout.splitlines() if line.startswith(("0 ", "1 ", "2 "))]
    assert [line.split()[1] for line in table] == ["chief", "workers", "reducers"]
    assert max(map(len, table)) <= 80
    assert "--consumer=projects/" in shown.stdout
    assert "Reduction servers\n" in shown.stdout


def test_what_the_image_says_counts_before_the_job_has_reducers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "docker").write_text(DOCKER.replace("image:1", SETTINGS.image))
    (tmp_path / "docker").chmod(0o755)
    (tmp_path / "vertex.toml").write_text(VERTEX_TOML)
    name = write(tmp_path, edited({P2: GONE})).name
    assert "Yes: 13 x n1-highcpu-16 shorten" in launch(name, *GIVEN, folder=tmp_path).stdout
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert (
        "No: according to the local image, NCCL can't find the plug-in" in launch(name, *GIVEN, folder=tmp_path).stdout
    )


def test_a_plan_is_one_json_document(folder: Path) -> None:
    shown = launch("jobs/workers.yaml", "--json", *GIVEN, folder=folder)
    answer = json.loads(shown.stdout)
    assert answer["gradient_bytes"] == 1.36e9
    assert answer["rows"][0]["role"] == "chief"
    assert answer["advised"]["verdict"]["text"]


def test_what_a_lost_machine_costs_is_told_to_those_who_say_how_often_that_happens(project: Path, folder: Path) -> None:
    def told(*flags: str) -> str:
        shown = launch("jobs/workers.yaml", *GIVEN, *flags, folder=folder)
        return " ".join((shown.stdout + shown.stderr).split())

    assert "requires the trainer's --steps and --checkpoint-every" in told("--hours-between-failures", "2000")
    shutil.copytree(project / "trainer", folder / "trainer")  # whose flags say how many steps there are
    assert "Lost machines" not in told()
    rare = told("--hours-between-failures", "2000")
    assert "the 3 training machines fail less than 0.01 times in " in rare
    assert re.search("No: only one in [0-9]{1,3},[0-9]{3} such runs loses a machine.", rare)
    jobs, flags = folder / "jobs/workers.yaml", '"--steps", "6000000", "--checkpoint-every", "20000"'
    jobs.write_text(jobs.read_text().replace('args: ["--', f'args: [{flags}, "--'))
    found = json.loads(told("--hours-between-failures", "50", "--json"))["failures"]
    assert found["run"]["seconds"] == 3600  # the timeout in the job file
    assert (found["run"]["machines"], found["run"]["checkpoint_every"]) == (3, 20000)
    assert found["restart_seconds"] == 600 + 1800  # no checkpoint was saved
    assert found["verdict"]["text"].startswith("No: only one in ")
    assert "--hours-between-failures is -1; use a finite number above 0" in told("--hours-between-failures=-1")
    both = told("--hours-between-failures", "9", "--compare")
    assert "--compare can't be combined with --hours-between-failures" in both
    without = launch("jobs/workers.yaml", "--gradient-bytes=1e9", "--hours-between-failures=9", folder=folder)
    assert "requires the time of a step; set --step-seconds" in without.stderr


def test_jobs_stand_side_by_side(folder: Path) -> None:
    names = ["jobs/workers.yaml", reducing(folder, 13).name]
    shown = launch(*names, "--compare", *GIVEN, folder=folder)
    titles, *_ = shown.stdout.splitlines()
    assert titles.split() == names
    assert "its reducers pay off" in shown.stdout
    assert "one machine" in shown.stdout


def test_a_search_says_that_it_is_one(folder: Path) -> None:
    shown = launch("jobs/tuning.yaml", *GIVEN, folder=folder).stdout
    assert ": 6 trials, 2 in parallel; one trial is shown" in shown.splitlines()[0]
    assert "per hour, for 2 trials of $" in shown
    assert "in each of 2 trials" in launch("jobs/tuning.yaml", "--compare", *GIVEN, folder=folder).stdout


def test_jobs_that_do_not_fit_side_by_side_stand_below_each_other(tmp_path: Path) -> None:
    names = [reducing(tmp_path, count).rename(tmp_path / f"{count}-reducers.yaml").name for count in (4, 8, 16, 25)]
    shown = launch(*names, "--compare", *GIVEN, folder=tmp_path).stdout.splitlines()
    assert max(map(len, shown)) <= 80
    assert [line.split() for line in shown if "yaml" in line] == [names[:2], names[2:]]


def test_jobs_with_other_reducers_take_other_times(tmp_path: Path) -> None:
    many = reducing(tmp_path, 13).rename(tmp_path / "many.yaml")
    few = reducing(tmp_path, 1)
    shown = launch(few.name, many.name, "--compare", *GIVEN, folder=tmp_path).stdout.splitlines()
    step, pays = (next(line for line in shown if line.startswith(title)) for title in ("step", "its reducers pay off"))
    assert len(set(step.split("  ")[1:])) > 2
    assert "1 x n1-highcpu-16: no" in pays
    assert "13 x n1-highcpu-16: yes" in pays


@pytest.mark.parametrize("machine", ["n1-highcpu-16", '"n1-highcpu-16"', "'n1-highcpu-16'"])
def test_reducers_that_pay_are_written_into_the_file(machine: str, tmp_path: Path) -> None:
    path = reducing(tmp_path, 99)
    path.write_text(path.read_text().replace("n1-highcpu-16", machine))
    before = path.read_text()
    shown = launch(path.name, "--apply", *GIVEN, folder=tmp_path)
    assert shown.returncode == 0, shown.stderr
    count = json.loads(launch(path.name, "--json", *GIVEN, folder=tmp_path).stdout)["advised"]["sizing"]["count"]
    assert path.read_text() == before.replace("replicaCount: 99", f"replicaCount: {count}")
    assert f"{path.name}: the file now specifies {count} x n1-highcpu-16" in shown.stdout
    assert f"already specifies {count} x n1-highcpu-16" in launch(path.name, "--apply", *GIVEN, folder=tmp_path).stdout


def test_the_speed_of_a_run_says_how_long_computing_takes(tmp_path: Path) -> None:
    curves = EventFileWriter(str(tmp_path / "logs"))
    for step, rate in enumerate((1.0, 400.0, 410.0)):  # the first includes the start
        value = Summary.Value(tag="train/samples_per_second_per_device", simple_value=rate)
        curves.add_event(Event(step=step, summary=Summary(value=[value])))
    curves.close()
    assert workload.samples_per_second_per_gpu(tmp_path) == 400
    with pytest.raises(FaultError, match="the folder doesn't contain the metric train/samples_per_second_per_device"):
        workload.samples_per_second_per_gpu(tmp_path / "nothing")


def test_a_run_of_this_machine_without_gpus_measures_none(tmp_path: Path) -> None:
    buckets = tmp_path / ".vertex/gcs"
    run = buckets / "demo/run"
    with pytest.raises(
        FaultError, match="this run wasn't measured on a GPU, because this machine doesn't have one; copy the output"
    ):
        workload.require_gpus(run, buckets, gpus=())
    workload.require_gpus(run, buckets, gpus=("0",))
    workload.require_gpus(tmp_path / "copied", buckets, gpus=())


SIZES = asdict(WORKLOAD)
TRAINER = f"""
import argparse, json
flags = argparse.ArgumentParser()
flags.add_argument("--global-batch", type=int, default=96)
print(json.dumps({SIZES!r} | {{"global_batch": flags.parse_known_args()[0].global_batch}}))
"""
OLD_TRAINER = f"import sys; assert '--describe' in sys.argv{TRAINER}"


def trainer(folder: Path, program: str = TRAINER, file: str = "trainer/describe/__main__.py") -> None:
    """A program that says what its training needs, as the planner asks it."""
    (folder / file).parent.mkdir(parents=True)
    (folder / file).write_text(program)


@pytest.mark.parametrize("asked", [(), (OLD_TRAINER, "trainer/task.py")], ids=["by its program", "by its old flag"])
def test_the_trainer_is_asked_what_it_needs_once(asked: tuple[str, ...], tmp_path: Path) -> None:
    path = reducing(tmp_path, 10)
    trainer(tmp_path, *asked)
    batch = {"args": ["--global-batch=$(BATCH)"], "env": [{"name": "BATCH", "value": "320"}]}
    write(tmp_path, edited({f"{P0}.containerSpec.{key}": value for key, value in batch.items()}))
    first = json.loads(launch(path.name, "--json", folder=tmp_path).stdout)
    assert first["workload"]["global_batch"] == 320
    assert first["workload"]["parameters"] > 100_000
    assert first["gradient_bytes"] == 4 * first["workload"]["parameters"]
    (kept,) = (tmp_path / ".vertex/described").iterdir()
    kept.write_text(kept.read_text().replace('"global_batch": ', '"global_batch": 1'))
    second = json.loads(launch(path.name, "--json", folder=tmp_path).stdout)
    assert second["workload"]["global_batch"] != first["workload"]["global_batch"]


def test_the_command_draws_and_says_so(tmp_path: Path) -> None:
    path = reducing(tmp_path, 10)
    trainer(tmp_path)
    shown = launch(path.name, "--chart", "PLAN.PNG", "--step-seconds", "0.2", folder=tmp_path)
    assert shown.stdout.startswith("PLAN.PNG: chart saved\n")
    assert (tmp_path / "PLAN.PNG").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("print('hello')", "the trainer doesn't print its sizes. Use --gradient-bytes"),
        ("x = 1\ndef f(:", "the trainer can't be described: silent.py:2: SyntaxError: invalid syntax. Use"),
        ("import json\njson.loads('')", "can't be described: silent.py:2: json.decoder.JSONDecodeError: Expecting"),
        ("raise NameError('do you mean x?')", "silent.py:1: NameError: do you mean x? Use --gradient-bytes"),
        ("raise SystemExit('no such data')", "the trainer can't be described: no such data. Use"),
    ],
)
def test_a_trainer_that_does_not_answer_leaves_price_and_quota(folder: Path, program: str, words: str) -> None:
    path = folder / "jobs/workers.yaml"
    path.write_text(path.read_text().replace('"trainer.task"', '"silent"'))
    (folder / "silent.py").write_text(program)
    shown = launch("jobs/workers.yaml", folder=folder)
    assert shown.returncode == 0, shown.stderr
    assert "Total: $" in shown.stdout
    assert "custom_model_training" in shown.stdout
    assert words in shown.stdout


ONE_L4 = {"machineType": "g2-standard-8", "acceleratorType": L4, "acceleratorCount": 1}
TPUS = {"machineType": "ct5lp-hightpu-4t", "tpuTopology": "4x4"}
PACKAGE = {
    "executorImageUri": "us-docker.pkg.dev/vertex-ai/training/pytorch-gpu.2-4.py310:latest",
    "packageUris": ["gs://demo-data/trainer-0.1.tar.gz"],
    "pythonModule": "absent.task",
}
NO_MODULE = 'the chief runs "{}", but only a Python module can describe its workload. Use --gradient-bytes.'


def container(*command: str, image: str = SETTINGS.image) -> dict[str, Any]:
    return {"containerSpec": {"imageUri": image, "command": list(command)}}


# Pool 0 of a job whose program cannot be asked, and why.
FOREIGN: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "script": (ONE_L4, container("bash", "train.sh"), NO_MODULE.format("bash train.sh")),
    "torchrun": (ONE_L4, container("torchrun", "train.py"), NO_MODULE.format("torchrun train.py")),
    "module": (
        ONE_L4,
        container("python3", "-u", "-m", "absent.train"),
        "the module absent isn't installed on this machine",
    ),
    "image": (ONE_L4, container(image="us-docker.pkg.dev/demo/other:1"), "only the image defines the chief's command"),
    "package": (ONE_L4, {"pythonPackageSpec": PACKAGE}, "the module absent isn't installed on this machine"),
    "tpu": (TPUS, container("python", "train.py"), "the network speed of 1 x ct5lp-hightpu-4t is unknown"),
}


def test_price_and_quota_depend_on_the_machines_alone(tmp_path: Path) -> None:
    (tmp_path / "vertex.toml").write_text(VERTEX_TOML + "[prices]\nct5lp-hightpu-4t = 5.0\n")
    for name, (machine, task, _) in FOREIGN.items():
        document = {"workerPoolSpecs": [{"machineSpec": machine, "replicaCount": 1, **task}]}
        write(tmp_path, document).rename(tmp_path / f"{name}.yaml")
    names = [f"{name}.yaml" for name in FOREIGN]
    shown = launch(*names, "--compare", folder=tmp_path)
    assert shown.returncode == 0, shown.stderr
    for name, (*_, reason) in FOREIGN.items():
        assert f"{name}.yaml: Memory and time aren't known: {reason}" in shown.stdout
    prices = [word for line in shown.stdout.splitlines() if line.startswith("per hour") for word in line.split()[2:]]
    assert prices == ["$0.98"] * 5 + ["$5.00"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("jobs/workers.yaml", "jobs/single.yaml"), "plan accepts one job, not 2; to compare jobs, add --compare"),
        (
            ("jobs/workers.yaml", "--compare", "--apply"),
            "--compare can't be combined with --apply or --chart; remove --compare",
        ),
        (("jobs/workers.yaml", "--run", "x", "--step-seconds", "1"), "use only one"),
        (("jobs/workers.yaml", "--run", "x", "--gradient-bytes", "1"), "use --step-seconds"),
        (
            ("jobs/workers.yaml", "--chart", "x.doc", *GIVEN),
            "x.doc isn't an image filename; use a name that ends in .png or .svg",
        ),
        (
            ("jobs/workers.yaml", "--chart", "no/x.png", *GIVEN),
            "no/x.png: the folder no doesn't exist; create it first",
        ),
        (("jobs/workers.yaml", "--chart", "x.png", *GIVEN), "the chart requires the trainer's batch size"),
        (("jobs/single.yaml", "--step-seconds", "0"), "--step-seconds is 0; use a finite number above 0"),
        (("jobs/workers.yaml", "--step-seconds", "inf"), "--step-seconds is inf; use a finite number above 0"),
        (("jobs/workers.yaml", "--gradient-bytes", "nan"), "--gradient-bytes is nan; use a finite number above 0"),
        (("jobs/workers.yaml", "--mfu", "nan"), "--mfu is nan; use a fraction from 0.01 to 1"),
        (("jobs/single.yaml", "--apply", *GIVEN), "reducers aren't worth their price; the job doesn't need pool 2"),
        (("jobs/no.yaml",), "jobs/no.yaml: error: the file doesn't exist"),
        (
            ("jobs/workers.yaml", "--chart", "x.png"),
            "x.png: the chart requires the size of the gradients: the module trainer",
        ),
    ],
)
def test_what_cannot_be_planned_is_refused_in_one_sentence(
    folder: Path, arguments: tuple[str, ...], words: str
) -> None:
    shown = launch(*arguments, folder=folder)
    assert shown.returncode == 1
    (line,) = while_fresh(shown.stderr).splitlines()
    assert words in line
