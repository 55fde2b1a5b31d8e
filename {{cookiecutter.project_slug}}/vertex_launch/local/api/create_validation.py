"""What a client may say of a new resource, beyond what its message alone tells.

Source: google-cloud-aiplatform 2.7.0, the documentation of the fields in types/.
"""

from collections.abc import Iterator, Mapping
from typing import Any

# What the service alone writes, in whichever message: "Output only" in the documentation of each field.
OUTPUT_ONLY = (
    *("name", "state", "error", "create_time", "start_time", "end_time", "update_time"),
    *("web_access_uris", "trials", "training_task_metadata", "data_item_count", "metadata_artifact"),
    *("satisfies_pzs", "satisfies_pzi"),
    # of a model
    *("version_id", "version_create_time", "version_update_time", "training_pipeline", "checkpoints"),
    *("deployed_models", "model_source_info", "original_model_info", "supported_export_formats"),
    *("supported_deployment_resources_types", "supported_input_storage_formats", "supported_output_storage_formats"),
)
MOST_LABELS, LONGEST_LABEL = 64, 64  # the second in characters, of a key and of a value
RESERVED = "aiplatform.googleapis.com/"  # keys of the service, which clients send back with what they got


def without_output(message: Any) -> Any:
    """The message without what only the service writes, in itself and in a model within; it is changed in place."""
    pb = type(message).pb(message)
    model = "model_to_upload" in pb.DESCRIPTOR.fields_by_name and pb.HasField("model_to_upload")
    for part in (pb, pb.model_to_upload) if model else (pb,):
        for name in OUTPUT_ONLY:
            if name in part.DESCRIPTOR.fields_by_name:
                part.ClearField(name)
    return message


def label_faults(labels: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """What the service would refuse of a resource's labels, as places and sentences."""
    if len(labels) > MOST_LABELS:
        yield "labels", f"are {len(labels)}; keep {MOST_LABELS} of them"
    for key, value in labels.items():
        if key.startswith(RESERVED):
            continue
        if fault := _text_fault(key) if key else "is empty; name it":
            yield "labels", f'the key "{key}" {fault}'
        if fault := _text_fault(value):
            yield f"labels.{key}", f'"{value}" {fault}'


def _text_fault(text: str) -> str:
    if len(text) > LONGEST_LABEL:
        return f"has {len(text)} characters; shorten it to {LONGEST_LABEL}"
    if text != text.lower() or not all(character.isalnum() or character in "_-" for character in text):
        return "has other characters than lower-case letters, digits, _ and -; write such as my_label"
    return ""
