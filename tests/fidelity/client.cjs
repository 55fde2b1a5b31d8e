// Calls of the Node client, as a replica makes them, by its default transport; it ends with 0 if all is as it should be.
const assert = require('node:assert');
const {JobServiceClient} = require('@google-cloud/aiplatform').v1;

const parent = 'projects/p/locations/us-central1';
const pool = command => ({
  machineSpec: {machineType: 'n1-standard-4'},
  replicaCount: 1,
  containerSpec: {imageUri: 'image', command},
});

async function main() {
  const client = new JobServiceClient({apiEndpoint: 'us-central1-aiplatform.googleapis.com'});
  const jobSpec = {workerPoolSpecs: [pool(['sleep', '600'])]};
  const [job] = await client.createCustomJob({parent, customJob: {displayName: 'of Node', jobSpec}});
  const [found] = await client.getCustomJob({name: job.name});
  assert.strictEqual(found.displayName, 'of Node');
  const [jobs] = await client.listCustomJobs({parent, filter: 'display_name="of Node"'});
  assert.deepStrictEqual(jobs.map(one => one.name), [job.name]);
  await client.cancelCustomJob({name: job.name});
  await assert.rejects(client.getCustomJob({name: `${parent}/customJobs/17`}), {code: 5}); // NOT_FOUND

  const rate = {parameterId: 'rate', doubleValueSpec: {minValue: 0.1, maxValue: 1}};
  const studySpec = {metrics: [{metricId: 'loss', goal: 'MINIMIZE'}], parameters: [rate]};
  const [search] = await client.createHyperparameterTuningJob({
    parent,
    hyperparameterTuningJob: {
      displayName: 'of Node', studySpec, maxTrialCount: 1, parallelTrialCount: 1,
      trialJobSpec: {workerPoolSpecs: [pool(['true'])]},
    },
  });
  assert.strictEqual(search.studySpec.parameters[0].parameterId, 'rate');
}

main();
