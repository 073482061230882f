// Goes through the whole of Wundr's protocol and shows every frame to the validators of its own package;
// what was called, told and found is told as a line of JSON.
//
// Parameters are shown to them first: what is asked here is what a client of theirs may ask.
import { execFile } from "node:child_process";
import { createRequire } from "node:module";
import { promisify } from "node:util";

const [url, modules, program, home] = process.argv.slice(2);
const require = createRequire(`${modules}/`);
// By their files: the package's own `exports` name neither.
const { MessageCodec, ...theirs } = require(`${modules}/@wundr.io/orchestrator-daemon/dist/protocol/index.js`);
const { createToken } = require(`${modules}/@wundr.io/orchestrator-daemon/dist/auth/jwt.js`);
const WebSocket = require("ws");
const { z } = require("zod");

const codec = new MessageCodec();
const told = { frames: 0, binary: 0, bad: [], methods: {}, events: {}, errors: {}, results: {}, tools: {}, missing: {} };
const PATIENCE_MS = 60_000;
const deadline = setTimeout(() => end("out of time"), 2 * PATIENCE_MS);

function end(error) {
  clearTimeout(deadline);
  if (error) told.error = String(error.stack ?? error);
  process.stdout.write(JSON.stringify(told) + "\n", () => process.exit(error ? 1 : 0));
}

const count = (counts, name) => (counts[name] = (counts[name] ?? 0) + 1);

function check(schema, value, what) {
  const checked = schema.safeParse(value);
  if (checked.success) return;
  const issues = checked.error.issues.map((issue) => `${issue.path.join(".") || "(all)"}: ${issue.message}`);
  told.bad.push(`${what}: ${issues.join("; ")}: ${JSON.stringify(value).slice(0, 1000)}`);
}

// What the client library reads of a session; the package has no validator of it.
const SessionInfo = z.object({
  id: z.string().min(1),
  orchestratorId: z.string().min(1),
  sessionType: theirs.SessionTypeSchema,
  status: theirs.EVENT_PAYLOAD_SCHEMAS["session.status"].shape.status,
  task: z.object({ type: z.string(), description: z.string(), priority: z.string() }),
  startedAt: z.string().datetime(),
  endedAt: z.string().datetime().optional(),
  metrics: theirs.AgentStatusPayloadSchema.shape.metrics,
});
const Agent = theirs.AgentStatusPayloadSchema;
const Team = theirs.TeamStatusPayloadSchema;
const Ok = z.object({ ok: z.literal(true) });
const RESULTS = {
  "auth.connect": theirs.HelloPayloadSchema,
  "auth.refresh": theirs.HelloPayloadSchema.shape.auth,
  "auth.logout": Ok,
  "session.create": SessionInfo,
  "session.resume": SessionInfo,
  "session.status": SessionInfo,
  "session.list": z.object({
    sessions: z.array(SessionInfo),
    total: z.number().int(),
    limit: z.number().int(),
    offset: z.number().int(),
  }),
  "prompt.submit": z.object({ promptId: z.string().min(1) }),
  "agent.spawn": Agent,
  "agent.status": Agent,
  "agent.stop": Agent,
  "team.create": Team,
  "team.status": Team,
  "team.dissolve": Team,
  "health.ping": theirs.HealthPongPayloadSchema,
  "health.status": theirs.HealthStatusPayloadSchema,
  subscribe: theirs.SubscribeResultSchema,
  unsubscribe: Ok,
};
const PARAMS = {
  ...theirs.METHOD_PARAM_SCHEMAS,
  "rpc.discover": theirs.RpcDiscoverParamsSchema,
  "rpc.describe": theirs.RpcDescribeParamsSchema,
};
told.judged = Object.keys(RESULTS);
// An event that their clients listen for and their catalogue forgot.
const EVENTS = { ...theirs.EVENT_PAYLOAD_SCHEMAS, "health.status": theirs.HealthStatusPayloadSchema };

class Refusal extends Error {
  constructor(method, error) {
    super(`${method}: ${error?.code}: ${error?.message}`);
    this.error = error;
  }
}

class Connection {
  waiting = new Map();
  // What came and was not looked for; who looks for it.
  events = [];
  files = [];
  looking = [];
  strays = [];
  seq = 0;
  ids = 0;

  static async open() {
    const connection = new Connection();
    const socket = (connection.socket = new WebSocket(`${url}/v2`));
    connection.closed = new Promise((resolve) => socket.on("close", resolve));
    socket.on("message", (data, isBinary) => (isBinary ? connection.onBinary(data) : connection.onText(data)));
    await new Promise((resolve, reject) => socket.on("open", resolve).on("error", reject));
    return connection;
  }

  // Opens and is let in.
  static async as(auth, scopes) {
    const connection = await Connection.open();
    connection.hello = await connection.connect(auth, scopes);
    return connection;
  }

  connect(auth, scopes, versions = [1, 2]) {
    const client = { id: "judge", version: "1.0.0", platform: process.platform, displayName: "Judge" };
    const [minProtocol, maxProtocol] = versions;
    return this.call("auth.connect", { minProtocol, maxProtocol, auth, client, capabilities: ["streaming", "compression"], scopes });
  }

  onText(data) {
    told.frames += 1;
    const text = data.toString();
    const decoded = codec.decodeText(text);
    for (const error of decoded.errors) told.bad.push(`a frame: ${error}: ${text.slice(0, 1000)}`);
    const frame = JSON.parse(text);
    if (frame.type === "res") return this.onAnswer(frame, text);
    if (frame.type !== "event") return told.bad.push(`a frame that no server sends: ${text.slice(0, 1000)}`);
    if (frame.seq !== ++this.seq) told.bad.push(`event ${this.seq} has another number: ${text.slice(0, 1000)}`);
    count(told.events, frame.event);
    const schema = EVENTS[frame.event];
    if (schema) check(schema, frame.payload, `event ${frame.event}`);
    else told.bad.push(`event ${frame.event} is unknown to them: ${text.slice(0, 1000)}`);
    if (frame.event === "tool.result") count(told.tools, frame.payload.status);
    if (frame.event === "stream.error") count(told.errors, frame.payload.error?.code);
    this.events.push(frame);
    this.look();
  }

  onAnswer(frame, text) {
    if (!frame.ok) {
      count(told.errors, frame.error?.code);
      if (!frame.error || !(frame.error.code in theirs.ErrorCodes)) told.bad.push(`an error: ${text.slice(0, 1000)}`);
    } else if (frame.error) told.bad.push(`an answer with an error: ${text.slice(0, 1000)}`);
    const asked = this.waiting.get(frame.id);
    if (!asked) {
      this.strays.push(frame);
      return this.look();
    }
    this.waiting.delete(frame.id);
    const { method, resolve, reject } = asked;
    if (!frame.ok) return reject(new Refusal(method, frame.error));
    count(told.methods, method);
    if (RESULTS[method]) {
      count(told.results, method);
      check(RESULTS[method], frame.payload, `the answer to ${method}`);
    }
    resolve(frame.payload);
  }

  onBinary(data) {
    told.binary += 1;
    try {
      const frame = codec.decodeBinary(data);
      check(theirs.BinaryMetadataSchema, frame.metadata, "the metadata of a binary frame");
      this.files.push(frame);
    } catch (error) {
      told.bad.push(`a binary frame: ${error}`);
    }
    this.look();
  }

  look() {
    this.looking = this.looking.filter((looks) => !looks());
  }

  // The first that fits of those that came or will come.
  take(from, what, fits) {
    return new Promise((resolve, reject) => {
      const timer = setTimeout(() => reject(new Error(`waited for ${what}; ${JSON.stringify(told.events)}`)), PATIENCE_MS);
      this.looking.push(() => {
        const at = from.findIndex(fits);
        if (at < 0) return false;
        clearTimeout(timer);
        resolve(from.splice(at, 1)[0]);
        return true;
      });
      this.look();
    });
  }

  async event(name, fits = () => true) {
    return (await this.take(this.events, name, (frame) => frame.event === name && fits(frame.payload))).payload;
  }

  // Waits until a request is answered that is sent otherwise.
  answer(method, id) {
    return new Promise((resolve, reject) => {
      const timer = setTimeout(() => reject(new Error(`${method} is not answered`)), PATIENCE_MS);
      const done = (then) => (value) => (clearTimeout(timer), then(value));
      this.waiting.set(id, { method, resolve: done(resolve), reject: done(reject) });
    });
  }

  request(method, params, id = `r${++this.ids}`) {
    const request = { type: "req", id, method, params };
    check(theirs.RequestFrameSchema, request, `the test's request ${method}`);
    return request;
  }

  call(method, params = {}, id) {
    if (PARAMS[method]) check(PARAMS[method], params, `the test's parameters of ${method}`);
    const request = this.request(method, params, id);
    const answer = this.answer(method, request.id);
    this.socket.send(codec.encodeFrame(request));
    return answer;
  }

  async refused(code, method, params, id) {
    const answer = await this.call(method, params, id).then((payload) => ({ payload }), (error) => error);
    if (!(answer instanceof Refusal)) throw new Error(`${method} is not refused with ${code}: ${answer.stack ?? JSON.stringify(answer.payload)}`);
    if (answer.error.code !== code) throw new Error(`refused otherwise than with ${code}: ${answer.message}`);
    return answer.error;
  }

  // Sends what is no request, and takes the refusal.
  async sendRaw(text, id = "invalid") {
    this.socket.send(text);
    await this.take(this.strays, `the refusal of ${text}`, (frame) => !frame.ok && frame.id === id);
  }

  // Submits a prompt: its id.
  async submit(sessionId, prompt, more = {}) {
    return (await this.call("prompt.submit", { sessionId, prompt, ...more })).promptId;
  }

  over(promptId) {
    return this.take(
      this.events,
      `the end of ${promptId}`,
      ({ event, payload }) => ["stream.end", "stream.error"].includes(event) && payload.promptId === promptId,
    );
  }
}

const task = (description = "to be judged") => ({ type: "general", description, priority: "high", metadata: { by: "judge" } });
const session = (connection, more = {}) =>
  connection.call("session.create", { orchestratorId: "main", sessionType: "claude-code", task: task(), ...more });
const apiKey = (token) => ({ type: "api-key", token });
const jwt = (sub, scopes, expiresInSeconds = 600) => ({
  type: "jwt",
  token: createToken({
    sub,
    scopes,
    expiresInSeconds,
    issuer: "wundr-orchestrator",
    audience: "wundr-daemon",
    secret: process.env.JWT_SECRET,
  }),
});
const nowhere = "7f0c1f5e-0000-4000-8000-000000000000";

// What hello claims has to be all there is, but for what no method of theirs ever sends.
function catalogue(hello) {
  const without = (all, those) => all.filter((name) => !those.includes(name));
  told.missing.methods = without(theirs.PROTOCOL_V2_METHODS, hello.methods);
  told.missing.events = without(theirs.PROTOCOL_V2_EVENTS, hello.events);
  told.claimed = { methods: hello.methods, events: hello.events, capabilities: hello.server.capabilities };
}

async function discovery(boss) {
  const all = await boss.call("rpc.discover");
  if (all.methods.length !== boss.hello.methods.length) throw new Error("rpc.discover and hello differ");
  for (const method of boss.hello.methods) await boss.call("rpc.describe", { method });
}

async function sessions(boss) {
  const made = await session(boss);
  const sessionId = made.id;
  await boss.event("session.created", (payload) => payload.sessionId === sessionId);
  const quiet = await session(boss, { sessionType: "ruflo", subscribe: false });
  await boss.call("session.status", { sessionId });
  await boss.call("session.list");
  await boss.call("session.list", { status: "running", limit: 1, offset: 1 });
  for (const [prompt, more] of [
    ["hello", { context: { files: ["a.rs"] }, stream: true, maxTokens: 100 }],
    ["/fail", { stream: false }],
  ]) {
    await boss.over(await boss.submit(sessionId, prompt, more));
  }
  const slow = await boss.submit(sessionId, "/slow 60");
  await boss.event("stream.chunk", (payload) => payload.promptId === slow);
  await boss.call("session.status", { sessionId });
  await boss.call("prompt.cancel", { sessionId, promptId: slow });
  await boss.over(slow);
  await boss.call("prompt.cancel", { sessionId });
  // All of it once more, as who comes back is told it.
  await boss.call("session.history", { sessionId });
  await boss.call("session.resume", { sessionId, lastSeq: 0 });
  await boss.event("stream.start", (payload) => payload.sessionId === sessionId);
  await boss.call("session.stop", { sessionId, reason: "judged", force: true });
  await boss.event("session.stopped", (payload) => payload.sessionId === sessionId);
  await boss.call("session.status", { sessionId });
  await boss.call("session.stop", { sessionId: quiet.id });
  await boss.call("session.list", { status: "terminated" });
}

// Whose first model cannot be reached: what is done about it is told.
async function fallback(boss) {
  const { id } = await session(boss, { orchestratorId: "hasty" });
  const promptId = await boss.submit(id, "hello");
  await boss.event("stream.progress", (payload) => payload.promptId === promptId);
  await boss.over(promptId);
}

// Calls that wait, decided by somebody who may do nothing else.
async function approvals(boss, approver, sessionId) {
  const ask = async (input) => {
    const promptId = await boss.submit(sessionId, `/tool echo ${input}`);
    const { requestId } = await approver.event("tool.request", (payload) => payload.sessionId === sessionId);
    return { promptId, about: { sessionId, requestId } };
  };
  const hi = await ask('{"text":"hi"}');
  await approver.call("tool.approve", { ...hi.about, modifiedInput: { text: "instead" } });
  await approver.refused("CONFLICT", "tool.deny", hi.about);
  await boss.over(hi.promptId);
  const wrong = await ask('{"text":1}');
  await boss.call("tool.approve", wrong.about);
  await boss.over(wrong.promptId);
  const denied = await ask('{"text":"no"}');
  await approver.call("tool.deny", { ...denied.about, reason: "not today" });
  await boss.over(denied.promptId);
  const cancelled = await ask('{"text":"never mind"}');
  await boss.call("prompt.cancel", { sessionId, promptId: cancelled.promptId });
  await boss.over(cancelled.promptId);
  await approver.refused("FORBIDDEN", "session.list");
}

async function agents(boss, parentSessionId) {
  const spawn = (description, more) =>
    boss.call("agent.spawn", { agentType: "helper", task: { description, priority: "low" }, ...more });
  const { agentId } = await spawn("count the planets", { parentSessionId, config: { maxTokens: 10_000 } });
  await boss.event("agent.spawned", (payload) => payload.agentId === agentId);
  await boss.event("agent.status", (payload) => payload.agentId === agentId && payload.status === "completed");
  await boss.call("agent.status", { agentId });
  const failing = await spawn("/fail");
  await boss.event("agent.status", (payload) => payload.agentId === failing.agentId && payload.status === "failed");
  await boss.call("agent.status", { agentId: failing.agentId });
  const slow = await spawn("/slow 60");
  await boss.call("agent.stop", { agentId: slow.agentId, reason: "judged" });
  await boss.event("agent.stopped", (payload) => payload.agentId === slow.agentId);
  await boss.refused("NOT_FOUND", "agent.status", { agentId: "nobody" });
}

async function teams(boss) {
  const create = (coordinationStrategy, description) =>
    boss.call("team.create", {
      name: `the ${coordinationStrategy} ones`,
      description: "to be judged",
      agents: [
        { agentType: "main", role: "writer", config: {} },
        { agentType: "main", role: "critic" },
      ],
      coordinationStrategy,
      task: { description, priority: "critical" },
    });
  for (const strategy of ["sequential", "round-robin"]) {
    const { teamId } = await create(strategy, "praise the sea");
    await boss.event("team.status", (payload) => payload.teamId === teamId && payload.status === "completed");
    await boss.call("team.status", { teamId });
  }
  const { teamId, agents } = await create("parallel", "/slow 3");
  const [writer, critic] = agents.map(({ agentId }) => agentId);
  // While they still work.
  await Promise.all([
    boss.call("team.message", { teamId, from: writer, to: critic, content: "what do you think?", metadata: { urgent: true } }),
    boss.call("team.message", { teamId, from: critic, content: "listen, all" }),
  ]);
  await boss.event("team.message", (payload) => payload.teamId === teamId && payload.to === critic);
  // The answer to a message is a message too.
  await boss.event("team.message", (payload) => payload.teamId === teamId && payload.inReplyTo);
  await boss.call("team.dissolve", { teamId, reason: "judged" });
  await boss.event("team.dissolved", (payload) => payload.teamId === teamId);
  await boss.call("team.status", { teamId });
  await boss.refused("INVALID_REQUEST", "team.create", {
    name: "no",
    agents: [{ agentType: "main", role: "one" }],
    coordinationStrategy: "custom",
    task: { description: "what?" },
  });
}

async function memory(boss, sessionId) {
  const kept = [];
  for (const [tier, type] of [["scratchpad", "interaction"], ["episodic", "decision"], ["semantic", "knowledge"]]) {
    kept.push(await boss.call("memory.store", { content: `herons wade slowly (${tier})`, tier, type, sessionId, metadata: { tier } }));
  }
  await boss.call("memory.store", { content: "cranes dance", tier: "semantic" });
  const found = await boss.call("memory.query", { query: "herons", sessionId, limit: 100, similarityThreshold: 0.5 });
  if (found.results.length !== 3) throw new Error(`three memories are not found: ${JSON.stringify(found)}`);
  await boss.call("memory.query", { query: "cranes", tier: "semantic" });
  for (const { memoryId } of kept) await boss.call("memory.delete", { memoryId });
  await boss.refused("NOT_FOUND", "memory.delete", { memoryId: kept[0].memoryId });
}

// Frames of their encoder there, and through their decoder back.
async function files(boss) {
  const content = Buffer.from(Array.from({ length: 300_000 }, (_, at) => (at * 7919) >> 5));
  const piece = (at) => content.subarray(at * 100_000, (at + 1) * 100_000);
  const put = async (compression, isAnnounced) => {
    const id = MessageCodec.newCorrelationId();
    const compressed = compression !== "none";
    if (isAnnounced) await boss.call("file.upload", { uploadId: id, filename: "announced.bin", totalSize: content.length });
    const answer = boss.answer("file.upload", id);
    for (const chunkIndex of [0, 1, 2]) {
      const about = { method: "file.upload", filename: `${compression}.bin`, contentType: "application/octet-stream", totalSize: content.length };
      const metadata = chunkIndex || isAnnounced ? { chunkIndex } : { ...about, chunkIndex };
      check(theirs.BinaryMetadataSchema, metadata, "the test's metadata");
      const flags = { compressed, chunked: true, final: chunkIndex === 2 };
      boss.socket.send(codec.encodeBinary(id, metadata, codec.compress(piece(chunkIndex), compression), flags));
    }
    const file = await answer;
    if (file.size !== content.length) throw new Error(`another size: ${JSON.stringify(file)}`);
    return file.fileId;
  };
  const kept = [await put("none"), await put("deflate"), await put("gzip"), await put("deflate", true)];
  for (const fileId of kept) {
    const id = MessageCodec.newCorrelationId();
    const answer = boss.call("file.download", { fileId }, id);
    const pieces = [];
    for (let isLast = false; !isLast; ) {
      const frame = await boss.take(boss.files, "a piece of a file", ({ correlationId }) => correlationId === id);
      if (frame.metadata.chunkIndex !== pieces.length) throw new Error(`piece ${pieces.length} is ${JSON.stringify(frame.metadata)}`);
      pieces.push(frame.compressed ? codec.decompress(frame.payload, "deflate") : frame.payload);
      isLast = frame.final || !frame.chunked;
    }
    await answer;
    if (!Buffer.concat(pieces).equals(content)) throw new Error("the file that came back is another one");
    await boss.call("file.status", { fileId });
  }
  await boss.call("file.list");
  for (const fileId of kept) await boss.call("file.delete", { fileId });
  await boss.refused("NOT_FOUND", "file.download", { fileId: kept[0] }, MessageCodec.newCorrelationId());
  // A frame that is none of theirs is refused under its id, or under none.
  const id = MessageCodec.newCorrelationId();
  boss.socket.send(codec.encodeBinary(id, { method: "no.such" }, Buffer.from("?"), { final: true }));
  await boss.take(boss.strays, "the refusal of a binary frame", (frame) => frame.id === id && !frame.ok);
  boss.socket.send(Buffer.from([9]));
  await boss.take(boss.strays, "the refusal of a short frame", (frame) => frame.id === "invalid" && !frame.ok);
}

async function configuration(boss) {
  await boss.call("config.get");
  await boss.call("config.get", { all: true });
  await boss.call("config.get", { keys: ["limits.queue", "memory"] });
  await boss.call("config.set", { values: { "limits.queue": 5 }, merge: true });
  await boss.call("config.set", { values: { memory: { episodic_turns: 7 } }, merge: false });
  await boss.refused("INVALID_REQUEST", "config.set", { values: { "no.such": 1 } });
}

// Whatever is wrong with what is asked, its refusal is a frame of theirs.
async function refusals(boss) {
  await boss.refused("NOT_FOUND", "session.status", { sessionId: nowhere });
  await boss.refused("NOT_FOUND", "unsubscribe", { subscriptionId: "sub_0" });
  await boss.refused("INVALID_REQUEST", "no.such", {});
  await boss.refused("INVALID_REQUEST", "auth.connect", {
    minProtocol: 2,
    maxProtocol: 2,
    auth: apiKey("x"),
    client: { id: "again", version: "1", platform: "p" },
  });
  await boss.sendRaw("{");
  await boss.sendRaw("[]");
  await boss.sendRaw("42");
  await boss.sendRaw('{"type":"req","id":"","method":"health.ping"}');
  await boss.sendRaw('{"type":"req","id":7,"method":"health.ping"}', "7");
  await boss.sendRaw('{"type":"req","id":"wrong","method":"session.create","params":{"task":3}}', "wrong");
  const batch = [1, 2, 3].map((clientTimestamp) => boss.request("health.ping", { clientTimestamp }));
  const answers = batch.map(({ method, id }) => boss.answer(method, id));
  boss.socket.send(codec.encodeBatch(batch));
  await Promise.all(answers);
}

// Being let in with their tokens, and not being let in.
async function credentials() {
  const ada = await Connection.as(jwt("ada", ["daemon.read", "daemon.write"]), ["daemon.read"]);
  await ada.refused("FORBIDDEN", "config.set", { values: {} });
  await ada.call("auth.refresh", { token: jwt("ada", ["daemon.read"], 900).token });
  await ada.refused("UNAUTHORIZED", "auth.refresh", { token: jwt("ada", ["daemon.read"], -5).token });
  await ada.call("auth.logout", { reason: "judged" });
  if ((await ada.closed) !== 1000) throw new Error("a logout closes with another code");

  const eager = await Connection.as(jwt("eager", ["daemon.write"]));
  const asks = Array.from({ length: 1000 }, () => eager.call("memory.delete", { memoryId: "none" }).catch(({ error }) => error));
  if (!(await Promise.all(asks)).some(({ code }) => code === "RATE_LIMITED")) throw new Error("nothing is limited");
  eager.socket.close();

  for (const [code, auth, versions, close] of [
    ["UNAUTHORIZED", jwt("late", ["daemon.read"], -5), [2, 2], 1008],
    ["UNAUTHORIZED", apiKey("wrong"), [2, 2], 1008],
    ["PROTOCOL_MISMATCH", apiKey(process.env.BOSS_KEY), [3, 9], 1002],
  ]) {
    const nobody = await Connection.open();
    const refusal = await nobody.connect(auth, undefined, versions).then(() => null, ({ error }) => error);
    if (refusal?.code !== code) throw new Error(`${JSON.stringify(auth)} ${versions}: ${JSON.stringify(refusal)}`);
    const closed = await nobody.closed;
    if (closed !== close) throw new Error(`${code} closes with ${closed}`);
  }
}

async function judge() {
  const boss = await Connection.as(apiKey(process.env.BOSS_KEY));
  catalogue(boss.hello);
  // While nothing was measured yet, and later.
  await boss.call("health.status");
  await boss.call("health.ping");
  await boss.call("health.ping", { clientTimestamp: Date.now() });
  await boss.call("subscribe", { events: ["*"] });
  const approver = await Connection.as(jwt("approver", ["daemon.approve"]));
  await approver.call("subscribe", { events: ["tool.*"] });

  // Nobody decides about this one.
  const waiting = await session(boss);
  const undecided = await boss.submit(waiting.id, '/tool echo {"text":"anybody?"}');
  await boss.event("session.status", (payload) => payload.sessionId === waiting.id && payload.status === "paused");
  await boss.call("session.status", { sessionId: waiting.id });

  const { id } = await session(boss);
  await discovery(boss);
  await sessions(boss);
  await approvals(boss, approver, id);
  await agents(boss, id);
  await teams(boss);
  await memory(boss, id);
  await files(boss);
  await configuration(boss);
  await refusals(boss);
  await credentials();
  await boss.over(undecided);
  const { subscriptionId } = await boss.call("subscribe", { events: ["stream.**", "*.status"], filter: { sessionId: id } });
  await boss.over(await boss.submit(id, "hello once more"));
  await boss.call("unsubscribe", { subscriptionId });
  await boss.event("health.heartbeat");

  const clawmux = (...args) => promisify(execFile)(program, ["--home", home, ...args]);
  await clawmux("drain");
  await boss.event("health.status", ({ status }) => status === "degraded");
  await boss.refused("UNAVAILABLE", "prompt.submit", { sessionId: id, prompt: "hello" });
  await boss.call("health.status");
  await clawmux("drain", "--off");
  await boss.event("health.status", ({ status }) => status === "running");
  await fallback(boss);
  await boss.event("health.status", ({ status }) => status === "degraded");
  for (const connection of [boss, approver]) {
    if (connection.strays.length) told.bad.push(`answers that nobody asked for: ${JSON.stringify(connection.strays)}`);
    connection.socket.close();
  }
}

await judge().then(() => end(), end);
