// The official JavaScript SDK's drive through a server. Keys and address come as JSON in the first argument; what a test
// looks at goes out as JSON in the last line. A failed assertion ends the process with a message.
import assert from "node:assert/strict";
import { Client } from "@langchain/langgraph-sdk";

const { url, ana: anaKey, marta: martaKey, phase, kept, ours = true } = JSON.parse(process.argv[2]);
const ana = new Client({ apiUrl: url, apiKey: anaKey });
const marta = new Client({ apiUrl: url, apiKey: martaKey });
const say = (text) => ({ messages: [{ role: "user", content: text }] });
const APPROVE = { kind: "approve" };

async function refused(call) {
  try { await call; } catch (error) { return error.status ?? Number(/\b(4\d\d)\b/.exec(error.message)?.[1]); }
  assert.fail("It was not refused.");
}

if (phase === "after") {
  const outcome = await ana.runs.join(kept.thread, kept.run);
  assert.equal(outcome.messages.at(-1).content, kept.text);
  console.log(JSON.stringify({ ok: true }));
  process.exit(0);
}

const [assistant] = await ana.assistants.search();
assert.equal(assistant.graph_id, "placet");

// Wait until it is interrupted, resume by id map, resume again
const one = (await ana.threads.create({ metadata: { peer: "javascript" } })).thread_id;
const paused = await ana.runs.wait(one, "placet", { input: say("Refund the failed orders of batch NOV-17") });
const [asked] = paused.__interrupt__;
assert.equal(asked.value.action_request.action, "refund_payments");
assert.deepEqual((await marta.threads.search({ status: "interrupted" })).map((t) => t.thread_id), [one]);
const done = await marta.runs.wait(one, "placet", { command: { resume: { [asked.id]: [{ type: "accept", args: null }] } } });
assert.equal(done.__interrupt__, undefined);
if (ours) { // elsewhere a refusal is a failed run
  assert.equal(await refused(marta.runs.wait(one, "placet", { command: { resume: { [asked.id]: APPROVE } } })), 409);
  assert.equal(await refused(marta.runs.wait(one, "placet", { command: { resume: APPROVE } })), 409);
}
assert.equal((await ana.threads.get(one)).status, "idle");
assert.ok((await ana.threads.getHistory(one)).length > 3);

// A stream that is cut and gone on with; refusals as Agent Chat UI sends them
const two = (await ana.threads.create()).thread_id;
let created;
const before = [];
const stream = ana.runs.stream(two, "placet", {
  input: say("Refund the failed orders of batch NOV-18"), streamMode: ["values", "updates"], streamResumable: true,
  onRunCreated: (run) => { created = run; },
});
for await (const part of stream) { before.push(part); if (before.length === 3) break; }
assert.equal(before[0].event, "metadata");
assert.equal(before[0].data.run_id, created.run_id);
const rest = [];
for await (const part of ana.runs.joinStream(two, created.run_id, { lastEventId: before.at(-1).id })) rest.push(part);
const whole = [];
for await (const part of ana.runs.joinStream(two, created.run_id, { lastEventId: "-1" })) whole.push(part);
if (ours) assert.deepEqual([...before, ...rest].map((p) => p.id), whole.map((p) => p.id)); // elsewhere numbers are milliseconds
const no = { decisions: [{ type: "reject", message: "Not today." }] };
const waiting = (await marta.threads.getState(two)).tasks.flatMap((task) => task.interrupts);
assert.ok(waiting.length >= 1);
if (ours && waiting.length > 1) {
  assert.equal(await refused(marta.runs.wait(two, "placet", { command: { resume: no } })), 409); // which of them?
}
const resume = Object.fromEntries(waiting.map((interrupt) => [interrupt.id, no]));
const told = await marta.runs.wait(two, "placet", { command: { resume } });
assert.ok(told.messages.some((message) => message.type === "tool" && message.content.includes("Not today.")));

// Cancel
const four = (await ana.threads.create()).thread_id;
const waits = await ana.runs.create(four, "placet", { input: say("What is the balance of batch NOV-17?"), afterSeconds: 600 });
await ana.runs.cancel(four, waits.run_id, true);
assert.equal((await ana.runs.get(four, waits.run_id)).status, "interrupted");

const three = (await ana.threads.create()).thread_id;
const run = await ana.runs.create(three, "placet", { input: say("What is the balance of batch NOV-17?") });
const outcome = await ana.runs.join(three, run.run_id);
console.log(JSON.stringify({ ok: true, kept: { thread: three, run: run.run_id, text: outcome.messages.at(-1).content } }));
