"""Out of scope."""

from google.cloud import aiplatform
from google.cloud.aiplatform_v1 import PipelineServiceClient, ScheduleServiceClient

from launcher.tests.sdk import gapic
from launcher.tests.vertex import PARENT, Service
from tests.fidelity.usages import DOCS, NOTEBOOKS, SAMPLES, SNIPPETS, rest, usage

V1, BETA = f"v1/{PARENT}", f"v1beta1/{PARENT}"
PIPELINE = {
    "pipelineInfo": {"name": "kfp"},
    "root": {"dag": {"tasks": {}}},
    "schemaVersion": "2.1.0",
    "sdkVersion": "kfp-2.7.0",
}


@usage(f"{SAMPLES}/create_endpoint_sample.py", absent="endpoints")
def endpoint(vertex: Service) -> None:
    """Create an endpoint."""
    aiplatform.Endpoint.create(display_name="endpoint")


@usage(f"{NOTEBOOKS}/prediction/get_started_with_vertex_private_endpoints.ipynb", absent="endpoints")
def private_endpoint(vertex: Service) -> None:
    """Create a private endpoint."""
    aiplatform.PrivateEndpoint.create(display_name="private", network="projects/12345/global/networks/default")


@usage(f"{NOTEBOOKS}/ml_metadata/vertex-pipelines-ml-metadata.ipynb", absent="endpoints")
def endpoints_listed(vertex: Service) -> None:
    """List endpoints."""
    aiplatform.Endpoint.list()


@usage(f"{DOCS}: Get online predictions, REST", absent="endpoints")
def online_prediction(vertex: Service) -> None:
    """Send a prediction request to an endpoint, as curl does."""
    rest(vertex, "POST", f"{V1}/endpoints/123:predict", {"instances": [[1, 2]]})


@usage(f"{NOTEBOOKS}/custom/get_started_with_vertex_endpoint_and_shared_vm.ipynb", absent="deploymentResourcePools")
def shared_machines(vertex: Service) -> None:
    """Create a pool of machines for several models."""
    rest(vertex, "POST", f"{V1}/deploymentResourcePools", {"deploymentResourcePoolId": "pool"})


@usage(f"{SNIPPETS}/job_service/create_batch_prediction_job_sample.py", absent="batchPredictionJobs")
def batch_prediction(vertex: Service) -> None:
    """Create a batch prediction job with the generated client."""
    job = {"display_name": "batch", "model": f"{PARENT}/models/1"}
    gapic(aiplatform.gapic.JobServiceClient, vertex).create_batch_prediction_job(
        parent=PARENT, batch_prediction_job=job
    )


@usage(f"{NOTEBOOKS}/model_evaluation/custom_tabular_regression_model_evaluation.ipynb", absent="batchPredictionJobs")
def batch_predictions_listed(vertex: Service) -> None:
    """List batch prediction jobs."""
    aiplatform.BatchPredictionJob.list()


@usage(f"{NOTEBOOKS}/pipelines/pipelines_intro_kfp.ipynb", absent="pipelineJobs")
def kubeflow_pipeline(vertex: Service) -> None:
    """Run a compiled Kubeflow pipeline."""
    # PipelineJob.run would first ask Google's Resource Manager for the number of the project.
    job = {"display_name": "kfp", "pipeline_spec": PIPELINE, "runtime_config": {"gcs_output_directory": "gs://b/kfp"}}
    gapic(PipelineServiceClient, vertex).create_pipeline_job(parent=PARENT, pipeline_job=job)


@usage(f"{NOTEBOOKS}/experiments/comparing_pipeline_runs.ipynb", absent="pipelineJobs")
def kubeflow_pipeline_found(vertex: Service) -> None:
    """Get a Kubeflow pipeline."""
    aiplatform.PipelineJob.get(f"{PARENT}/pipelineJobs/kfp")


@usage(f"{NOTEBOOKS}/ml_metadata/vertex-pipelines-ml-metadata.ipynb", absent="pipelineJobs")
def kubeflow_pipelines_listed(vertex: Service) -> None:
    """List Kubeflow pipelines."""
    aiplatform.PipelineJob.list()


@usage(f"{DOCS}: Schedule a pipeline run", absent="schedules")
def schedule(vertex: Service) -> None:
    """Run a Kubeflow pipeline every hour."""
    request = {"parent": PARENT, "pipeline_job": {"pipeline_spec": PIPELINE}}
    body = {"display_name": "hourly", "cron": "0 * * * *", "max_concurrent_run_count": 1}
    made = gapic(ScheduleServiceClient, vertex)
    made.create_schedule(parent=PARENT, schedule=body | {"create_pipeline_job_request": request})


@usage(f"{NOTEBOOKS}/ray_on_vertex_ai/ray_cluster_management.ipynb", absent="raySpec")
def ray_cluster(vertex: Service) -> None:
    """Create a Ray cluster, which is a persistent resource."""
    pools = [{"machineSpec": {"machineType": "n1-standard-4"}, "replicaCount": "1"}]
    body = {"resourcePools": pools, "resourceRuntimeSpec": {"raySpec": {}}}
    rest(vertex, "POST", f"{V1}/persistentResources", body, persistentResourceId="ray")


@usage(f"{SAMPLES}/create_featurestore_sample.py", absent="featurestores")
def feature_store(vertex: Service) -> None:
    """Create a feature store (legacy)."""
    aiplatform.Featurestore.create(featurestore_id="store", online_store_fixed_node_count=1)


@usage(f"{SAMPLES}/feature_store/create_feature_group_sample.py", absent="featureGroups")
def feature_group(vertex: Service) -> None:
    """Create a feature group in BigQuery."""
    body = {"bigQuery": {"bigQuerySource": {"inputUri": "bq://p.d.t"}, "entityIdColumns": ["id"]}}
    rest(vertex, "POST", f"{V1}/featureGroups", body, featureGroupId="group")


@usage(f"{SAMPLES}/feature_store/create_optimized_public_feature_online_store_sample.py", absent="featureOnlineStores")
def feature_online_store(vertex: Service) -> None:
    """Create a feature online store."""
    rest(vertex, "POST", f"{V1}/featureOnlineStores", {"optimized": {}}, featureOnlineStoreId="online")


@usage(f"{SAMPLES}/vector_search/vector_search_create_index_sample.py", absent="indexes")
def vector_index(vertex: Service) -> None:
    """Create an index for vector search."""
    aiplatform.MatchingEngineIndex.create_tree_ah_index(
        display_name="index", contents_delta_uri="gs://b/v", dimensions=2, approximate_neighbors_count=1
    )


@usage(f"{SAMPLES}/vector_search/vector_search_create_index_endpoint_sample.py", absent="indexEndpoints")
def index_endpoint(vertex: Service) -> None:
    """Create an endpoint for vector search."""
    aiplatform.MatchingEngineIndexEndpoint.create(display_name="index", public_endpoint_enabled=True)


@usage(f"{NOTEBOOKS}/model_monitoring/model_monitoring.ipynb", absent="modelDeploymentMonitoringJobs")
def monitoring(vertex: Service) -> None:
    """List the monitoring jobs of deployed models."""
    aiplatform.ModelDeploymentMonitoringJob.list()


@usage(f"{NOTEBOOKS}/model_monitoring_v2/model_monitoring_for_model_outside_vertex.ipynb", absent="modelMonitors")
def model_monitor(vertex: Service) -> None:
    """Create a model monitor."""
    rest(vertex, "POST", f"{BETA}/modelMonitors", {"displayName": "monitor"})


@usage(f"{SNIPPETS}/job_service/create_data_labeling_job_specialist_pool_sample.py", absent="specialistPools")
def specialists(vertex: Service) -> None:
    """Create a specialist pool for data labeling."""
    client = gapic(aiplatform.gapic.SpecialistPoolServiceClient, vertex)
    client.create_specialist_pool(parent=PARENT, specialist_pool={"display_name": "people"})


@usage(f"{DOCS}: Generate content with the Gemini API, REST", absent="publishers")
def gemini(vertex: Service) -> None:
    """Send a request to a Gemini model."""
    body = {"contents": [{"role": "user", "parts": [{"text": "hello"}]}]}
    rest(vertex, "POST", f"{V1}/publishers/google/models/gemini-2.0-flash:generateContent", body)


@usage(f"{DOCS}: Tune Gemini models by supervised fine-tuning, REST", absent="tuningJobs")
def gemini_tuned(vertex: Service) -> None:
    """Tune a Gemini model."""
    body = {"baseModel": "gemini-2.0-flash", "supervisedTuningSpec": {"trainingDatasetUri": "gs://b/d.jsonl"}}
    rest(vertex, "POST", f"{V1}/tuningJobs", body)


@usage(f"{DOCS}: Context caching, REST", absent="cachedContents")
def cached_content(vertex: Service) -> None:
    """Cache a context for later requests."""
    rest(vertex, "POST", f"{V1}/cachedContents", {"model": "gemini-2.0-flash"})


@usage(f"{DOCS}: RAG Engine, REST", absent="ragCorpora")
def retrieval(vertex: Service) -> None:
    """Create a corpus for retrieval."""
    rest(vertex, "POST", f"{BETA}/ragCorpora", {"displayName": "corpus"})


@usage(f"{DOCS}: Agent Engine, REST", absent="reasoningEngines")
def agent(vertex: Service) -> None:
    """Create an agent."""
    rest(vertex, "POST", f"{V1}/reasoningEngines", {"displayName": "agent"})


@usage(f"{DOCS}: Colab Enterprise, notebook runtimes, REST", absent="notebookRuntimes")
def notebook(vertex: Service) -> None:
    """List the runtimes of notebooks."""
    rest(vertex, "GET", f"{V1}/notebookRuntimes")


@usage(f"{DOCS}: Migrate to Vertex AI, REST", absent="migratableResources")
def migration(vertex: Service) -> None:
    """Search for resources that can be migrated."""
    rest(vertex, "POST", f"{V1}/migratableResources:search", {})


@usage(f"{DOCS}: Feature attributions, REST", absent="endpoints")
def explanation(vertex: Service) -> None:
    """Explain a prediction."""
    rest(vertex, "POST", f"{V1}/endpoints/123:explain", {"instances": [[1]]})


@usage(f"{DOCS}: Export metadata schemas, REST", absent="metadataSchemas")
def metadata_schemas(vertex: Service) -> None:
    """List the schemas of a metadata store."""
    rest(vertex, "GET", f"{V1}/metadataStores/default/metadataSchemas")
