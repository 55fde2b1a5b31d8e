"""Create-request checks that protobuf cannot express: output-only fields, keys.

Source: google-cloud-aiplatform 2.7.0, the documentation of the fields in types/.
"""

from collections.abc import Iterable
from typing import Any

from vertex_launch.errors import Findings
from vertex_launch.rules.region_and_output import key_name_findings, key_region_findings

# Fields of all messages that only the service writes: their documentation says "Output only".
OUTPUT_ONLY = (
    *("name", "state", "error", "create_time", "start_time", "end_time", "update_time"),
    *("web_access_uris", "trials", "training_task_metadata", "data_item_count", "metadata_artifact"),
    *("satisfies_pzs", "satisfies_pzi"),
    # of a model
    *("version_id", "version_create_time", "version_update_time", "training_pipeline", "checkpoints"),
    *("deployed_models", "model_source_info", "original_model_info", "supported_export_formats"),
    *("supported_deployment_resources_types", "supported_input_storage_formats", "supported_output_storage_formats"),
)


def without_output(message: Any, names: Iterable[str] = OUTPUT_ONLY) -> Any:
    """Clear, in place, the fields that only the service writes: the message's own and those of a model in it."""
    pb = type(message).pb(message)
    model = "model_to_upload" in pb.DESCRIPTOR.fields_by_name and pb.HasField("model_to_upload")
    for part in (pb, pb.model_to_upload) if model else (pb,):
        for name in names:
            if name in part.DESCRIPTOR.fields_by_name:
                part.ClearField(name)
    return message


def key_findings(message: Any, parent: str) -> Findings:
    """Yield what is wrong with the key that encrypts a new resource; whether it exists, nobody here can know."""
    if "encryption_spec" in type(message).meta.fields and "encryption_spec" in message:
        key = message.encryption_spec.kms_key_name
        yield from (*key_name_findings(key), *key_region_findings(key, parent.split("/")[3], "resource"))
