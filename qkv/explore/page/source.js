// Where all numbers and words of the page come from: the server, or what is recorded in the file itself.
// In: a name such as "pass/3f2a/top/4". Out: JSON, or a tensor { shape, data }; trouble is a sentence.
// The names are those of qkv/explore/app.py; a recorded file keeps the answers under the same names.

import { both } from "./words.js";

export class Trouble extends Error {
  constructor(sentence) {
    super(sentence.en);
    this.sentence = sentence;
  }
}

export function findSource() {
  const recorded = document.getElementById("qkv-data");
  return recorded ? new Recorded(JSON.parse(recorded.textContent)) : new Server();
}

// "top/4" and { k: 5 } -> "top/4?k=5"; keys in alphabetical order, as the recorded file writes them.
export function named(path, query = {}) {
  const pairs = Object.entries(query).filter(([, value]) => value != null).sort();
  return pairs.length ? `${path}?${pairs.map(([key, value]) => `${key}=${value}`).join("&")}` : path;
}

// last(question) gives the answer to the question asked last; an earlier one that comes late gives null.
export function lastOf() {
  let asked;
  return async (question) => {
    const mine = asked = {};
    const answer = await question;
    return mine === asked ? answer : null;
  };
}

class Server {
  offline = false;
  kept = new Map();

  async json(name) {
    if (!this.kept.has(name)) this.keep(name, (await this.ask(name)).json());
    return this.kept.get(name);
  }

  async tensor(name) {
    if (!this.kept.has(name)) this.keep(name, readTensor(await this.ask(name)));
    return this.kept.get(name);
  }

  // The latest answers stay at hand: going back to a step costs nothing.
  keep(name, answer) {
    this.kept.set(name, answer);
    if (this.kept.size > 60) this.kept.delete(this.kept.keys().next().value);
  }

  // What every pass was told of this may no longer be true: forget("/nearest").
  forget(ending) {
    for (const name of this.kept.keys()) if (name.endsWith(ending)) this.kept.delete(name);
  }

  open(request) {
    return this.send("pass", request);
  }

  async send(name, body) {
    return (await this.ask(name, {
      method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body),
    })).json();
  }

  async ask(name, options) {
    let answer;
    try {
      answer = await fetch(`api/${name}`, options);
    } catch {
      throw new Trouble(both("unreachable"));
    }
    if (!answer.ok) throw new Trouble((await answer.json().catch(() => ({}))).error ?? both("unreachable"));
    return answer;
  }
}

async function readTensor(answer) {
  const shape = answer.headers.get("X-Shape").split(",").filter(Boolean).map(Number);
  const bytes = await answer.arrayBuffer();
  return { shape, data: answer.headers.get("X-Dtype") === "uint8" ? new Uint8Array(bytes) : new Float32Array(bytes) };
}

class Recorded {
  offline = true;

  constructor({ passes, answers, tensors }) {
    Object.assign(this, { passes, answers, tensors });
  }

  async json(name) {
    return this.answers[name] ?? missing();
  }

  async open({ text, edits }) {
    const pass = this.passes.find((one) => one.text === text);
    return pass && !edits?.length ? this.json(`pass/${pass.id}`) : missing();
  }

  async send() {
    return missing();
  }

  // The whole is recorded; a head, a mean of heads or some rows are cut out of it here.
  async tensor(name) {
    const [path, query] = name.split("?");
    const { index, rows } = Object.fromEntries(new URLSearchParams(query ?? ""));
    if (this.tensors[path]) return cutRows(cutHead(decode(this.tensors[path]), index), rows);
    const [, layer, head] = path.match(/^(.*)\/([^/]+)$/) ?? [];
    return this.tensors[layer] ? cutHead(decode(this.tensors[layer]), head) : missing();
  }
}

function missing() {
  throw new Trouble(both("notRecorded"));
}

// Base64 becomes numbers once, and stays numbers.
function decode(recorded) {
  if (typeof recorded.data === "string") {
    const bytes = Uint8Array.from(atob(recorded.data), (letter) => letter.charCodeAt(0));
    recorded.data = recorded.dtype === "uint8" ? bytes : new Float32Array(bytes.buffer);
  }
  return recorded;
}

function cutHead({ shape, data }, head) {
  if (head === undefined) return { shape, data };
  const size = shape.slice(1).reduce((a, b) => a * b, 1);
  if (head !== "mean") return { shape: shape.slice(1), data: data.subarray(head * size, (Number(head) + 1) * size) };
  const mean = new Float32Array(size);
  for (let i = 0; i < data.length; i++) mean[i % size] += data[i] / shape[0];
  return { shape: shape.slice(1), data: mean };
}

function cutRows({ shape, data }, rows) {
  if (!rows) return { shape, data };
  const [first, last] = rows.split(":").map(Number);
  const size = shape.slice(1).reduce((a, b) => a * b, 1);
  return { shape: [last - first, ...shape.slice(1)], data: data.subarray(first * size, last * size) };
}
