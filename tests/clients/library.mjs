// What a program does with openclaw-node: one run through it, told as a line of JSON.
const { OpenClawClient } = await import(process.env.LIBRARY);
const [url, token] = process.argv.slice(2);
// From then on a device shows the token that was made for it, which allows no more than it asked for.
const options = (device) => ({ url, token: token || undefined, deviceIdentityPath: `${process.env.HOME}/${device}.json` });
const client = new OpenClawClient(options("user"));
const told = {};
const deadline = setTimeout(() => end("out of time"), 45_000);

function end(error) {
  if (error) told.error = String(error.stack ?? error);
  process.stdout.write(JSON.stringify(told) + "\n", () => process.exit(error ? 1 : 0));
}

// All chunks of an answer.
async function chat(text, options) {
  const chunks = [];
  for await (const chunk of client.chat(text, options)) chunks.push(chunk);
  return chunks;
}

try {
  client.on("error", (error) => (told.emitted ??= []).push(String(error)));
  const hello = await client.connect();
  told.hello = { protocol: hello.protocol, auth: hello.auth && { ...hello.auth, deviceToken: !!hello.auth.deviceToken } };
  told.methods = client.availableMethods.length;
  const sessionKey = "agent:main:library";
  told.answer = await chat("what do herons do", { sessionKey });
  told.health = await client.health();
  told.sessions = await client.sessions.list({ limit: 10 });
  told.history = await client.sessions.history(sessionKey);
  told.agents = await client.agents.list();
  if (client.hasMethod("sessions.describe")) told.described = await client.sessions.describe(sessionKey);

  // An answer that does not end is aborted from outside.
  const events = [];
  const cut = [];
  for await (const chunk of client.chat("and when there is no fish", { sessionKey })) {
    cut.push(chunk);
    if (chunk.type === "text" && !events.length) {
      events.push(chunk.runId);
      told.aborted = await client.chatAbort(sessionKey);
    }
  }
  told.cut = cut;

  // A message without an idempotency key, waited for by its run.
  told.sent = await client.sessions.send(sessionKey, "are you there");
  told.waited = await client.agentWait(told.sent.runId, { timeoutMs: 20_000 });
  told.after = await client.sessions.history(sessionKey);
  told.failed = await chat("ask another lake", { sessionKey }).catch((error) => [{ type: "thrown", text: String(error) }]);
  told.refused = await client.sessions.reset(sessionKey).catch(String);
  await client.disconnect();

  // What it may not do with the scopes it asks for by itself, it may as an admin.
  const admin = new OpenClawClient({ ...options("admin"), scopes: ["operator.admin"] });
  await admin.connect();
  told.reset = await admin.sessions.reset(sessionKey);
  told.deleted = await admin.sessions.delete(sessionKey);
  told.config = Object.keys(await admin.config.get());
  await admin.disconnect();
  clearTimeout(deadline);
  end();
} catch (error) {
  end(error);
}
