// Drives one page of a browser: a command a line on stdin, `{"do": ..}`, answered by a line on stdout,
// `{"ok": value}` or `{"error": text}`. What is asked of the page is in page.rs.
import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import readline from "node:readline";

const { chromium } = await import(process.env.PLAYWRIGHT);
const profile = fs.mkdtempSync(path.join(os.tmpdir(), "browser-"));
const browser = await chromium.launchPersistentContext(profile, {
  executablePath: process.env.CHROMIUM,
  headless: true,
  viewport: { width: 1400, height: 1600 },
  args: [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-dev-shm-usage",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
  ],
});
const page = browser.pages()[0] ?? (await browser.newPage());
page.setDefaultTimeout(30_000);
const faults = [];
page.on("pageerror", (error) => faults.push(`page error: ${error.stack ?? error}`));
// Of its own server only: pictures and fonts of other hosts are nobody's fault here.
const own = (url) => new URL(url).origin === new URL(page.url()).origin;
page.on("response", (response) => {
  if (response.status() >= 400 && own(response.url()))
    faults.push(`${response.status()} ${new URL(response.url()).pathname}`);
});
page.on("requestfailed", (request) => {
  const why = request.failure()?.errorText;
  if (why !== "net::ERR_ABORTED" && own(request.url())) faults.push(`${why} ${request.url()}`);
});

// What the page asks of the gateway and has no answer to yet, and what it was refused.
let waiting = new Map();
let refused = [];
page.on("websocket", (socket) => {
  waiting = new Map();
  const read = (frame) => {
    try {
      return JSON.parse(frame.payload);
    } catch {
      return {};
    }
  };
  socket.on("framesent", (frame) => {
    const { type, id, method } = read(frame);
    if (type === "req") waiting.set(id, method);
  });
  socket.on("framereceived", (frame) => {
    const { type, id, ok, error } = read(frame);
    if (type !== "res") return;
    if (!ok) refused.push(`${waiting.get(id)}: ${error?.message}`);
    waiting.delete(id);
  });
});

const button = (label) =>
  page.locator("button:visible").and(page.locator(`[aria-label^="${label}"], [title^="${label}"], :text("${label}")`));

// The page may load itself anew while it is looked at, as the newer one does after a lost connection:
// then it is looked at again.
async function look(seen) {
  for (let left = 5; ; left -= 1) {
    try {
      return await page.evaluate(seen);
    } catch (error) {
      if (left === 0 || !/Execution context was destroyed/.test(String(error))) throw error;
      await page.waitForLoadState();
    }
  }
}

const actions = {
  open: ({ url }) => page.goto(url).then(() => null),
  reload: () => page.reload().then(() => null),
  async send({ text }) {
    const box = page.locator('textarea[placeholder^="Message"]:visible').first();
    await box.click();
    await box.fill(text);
    await box.press("Enter");
    return null;
  },
  press: ({ label }) => button(label).first().click().then(() => null),
  button: async ({ label }) => (await button(label).count()) > 0,
  thread: () =>
    look(() =>
      [...document.querySelectorAll(".chat-thread .chat-group")].flatMap((group) => {
        const who = ["user", "assistant"].find((role) => group.classList.contains(role)) ?? "other";
        return [...group.querySelectorAll(".chat-bubble")].map((bubble) => [who, bubble.innerText.trim()]);
      })),
  text: () => look(() => document.body.innerText),
  tabs: () =>
    look(() => [...new Set([...document.querySelectorAll("nav a[href^='/'], aside a[href^='/']")]
      .filter((link) => link.offsetParent)
      .map((link) => link.getAttribute("href")))]),
  // What the main part of the page shows once all it asked for was answered, or a while later.
  async view() {
    for (let quiet = 0, left = 100; quiet < 6 && left > 0; left -= 1) {
      await page.waitForTimeout(100);
      const shows = await look(() => (document.querySelector("main")?.innerText ?? "").trim().length > 0);
      quiet = shows && waiting.size === 0 ? quiet + 1 : 0;
    }
    const seen = await look(() => {
      const main = document.querySelector("main");
      const red = '.callout.danger, [class*="-error"], [class*="__error"], [class*="feedback"]';
      const shown = [...(main?.querySelectorAll(red) ?? [])].filter((element) => element.getClientRects().length > 0);
      const text = (element) => (element?.innerText ?? "").trim();
      return { path: location.pathname, text: text(main), red: shown.map(text).filter(Boolean) };
    });
    const told = refused;
    refused = [];
    return { ...seen, refused: told };
  },
  faults: () => faults,
};

for await (const line of readline.createInterface({ input: process.stdin })) {
  const command = JSON.parse(line);
  if (command.do === "end") break;
  let answer;
  try {
    answer = { ok: (await actions[command.do](command)) ?? null };
  } catch (error) {
    answer = { error: String(error.stack ?? error) };
  }
  process.stdout.write(JSON.stringify(answer) + "\n");
}
await browser.close();
fs.rmSync(profile, { recursive: true, force: true });
process.exit(0);
