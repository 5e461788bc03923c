// Data source of the page: the server, or the answers recorded in an offline file.
// A request name such as "pass/3f2a/top/4" gives JSON or a tensor { shape, data }.
// The names are those of ROUTES in qkv/explore/explorer.py.

import { both } from "./words.js";

// An error with its message in both languages.
export class PageError extends Error {
  constructor(texts) {
    super(texts.en);
    this.texts = texts;
  }
}

export function findSource() {
  const recorded = document.getElementById("qkv-data");
  return recorded ? new OfflineFile(JSON.parse(recorded.textContent)) : new Server();
}

// requestName("top/4", { k: 5 }) -> "top/4?k=5"; keys in alphabetical order, as in recorded files.
export function requestName(path, query = {}) {
  const pairs = Object.entries(query).filter(([, value]) => value != null).sort();
  return pairs.length ? `${path}?${pairs.map(([key, value]) => `${key}=${value}`).join("&")}` : path;
}

// latest(promise) resolves to the answer of the latest call; a late answer of an earlier call gives null.
export function latestOnly() {
  let current;
  return async (promise) => {
    const request = current = {};
    const answer = await promise;
    return request === current ? answer : null;
  };
}

class Server {
  offline = false;
  cache = new Map();

  async json(name) {
    if (!this.cache.has(name)) this.store(name, (await this.request(name)).json());
    return this.cache.get(name);
  }

  async tensor(name) {
    if (!this.cache.has(name)) this.store(name, readTensor(await this.request(name)));
    return this.cache.get(name);
  }

  // The latest answers are cached.
  store(name, answer) {
    this.cache.set(name, answer);
    if (this.cache.size > 60) this.cache.delete(this.cache.keys().next().value);
  }

  // Drop cached answers that are no longer valid: forget("/nearest").
  forget(suffix) {
    for (const name of this.cache.keys()) if (name.endsWith(suffix)) this.cache.delete(name);
  }

  open(request) {
    return this.send("pass", request);
  }

  async send(name, body) {
    return (await this.request(name, {
      method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body),
    })).json();
  }

  async request(name, options) {
    let response;
    try {
      response = await fetch(`api/${name}`, options);
    } catch {
      throw new PageError(both("unreachable"));
    }
    if (!response.ok) throw new PageError((await response.json().catch(() => ({}))).error ?? both("unreachable"));
    return response;
  }
}

async function readTensor(response) {
  const shape = response.headers.get("X-Shape").split(",").filter(Boolean).map(Number);
  const bytes = await response.arrayBuffer();
  return { shape, data: response.headers.get("X-Dtype") === "uint8" ? new Uint8Array(bytes) : new Float32Array(bytes) };
}

class OfflineFile {
  offline = true;

  constructor({ passes, answers, tensors }) {
    Object.assign(this, { passes, answers, tensors });
  }

  async json(name) {
    return this.answers[name] ?? notRecorded();
  }

  async open({ text, edits }) {
    const pass = this.passes.find((recorded) => recorded.text === text);
    return pass && !edits?.length ? this.json(`pass/${pass.id}`) : notRecorded();
  }

  async send() {
    return notRecorded();
  }

  // Full tensors are recorded; a head, a mean of heads or a range of rows is computed here.
  async tensor(name) {
    const [path, query] = name.split("?");
    const { index, rows } = Object.fromEntries(new URLSearchParams(query ?? ""));
    if (this.tensors[path]) return selectRows(selectHead(decode(this.tensors[path]), index), rows);
    const [, layer, head] = path.match(/^(.*)\/([^/]+)$/) ?? [];
    return this.tensors[layer] ? selectHead(decode(this.tensors[layer]), head) : notRecorded();
  }
}

function notRecorded() {
  throw new PageError(both("notRecorded"));
}

// Decode base64 once.
function decode(recorded) {
  if (typeof recorded.data === "string") {
    const bytes = Uint8Array.from(atob(recorded.data), (character) => character.charCodeAt(0));
    recorded.data = recorded.dtype === "uint8" ? bytes : new Float32Array(bytes.buffer);
  }
  return recorded;
}

function selectHead({ shape, data }, head) {
  if (head === undefined) return { shape, data };
  const size = shape.slice(1).reduce((a, b) => a * b, 1);
  if (head !== "mean") return { shape: shape.slice(1), data: data.subarray(head * size, (Number(head) + 1) * size) };
  const mean = new Float32Array(size);
  for (let i = 0; i < data.length; i++) mean[i % size] += data[i] / shape[0];
  return { shape: shape.slice(1), data: mean };
}

function selectRows({ shape, data }, rows) {
  if (!rows) return { shape, data };
  const [first, last] = rows.split(":").map(Number);
  const size = shape.slice(1).reduce((a, b) => a * b, 1);
  return { shape: [last - first, ...shape.slice(1)], data: data.subarray(first * size, last * size) };
}
