"use strict";
// A trained Transformer, step by step, in plain arithmetic. Attention sees one token a head (a line), or all (plain).

function halves(text) {  // base64 of half precision to numbers
  const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0)), found = new Float32Array(bytes.length / 2);
  for (let i = 0; i < found.length; i++) {
    const bits = bytes[2 * i] | (bytes[2 * i + 1] << 8), e = (bits >> 10) & 31, m = bits & 1023;
    const value = e === 0 ? m * 2 ** -24 : (1 + m / 1024) * 2 ** (e - 15);
    found[i] = bits & 32768 ? -value : value;
  }
  return found;
}

class Model {
  constructor(data) {
    Object.assign(this, data);
    const all = halves(data.weights);
    let at = 0;
    this.p = {};
    for (const [name, count] of data.names) { this.p[name] = all.subarray(at, at + count); at += count; }
    this.closed = new Set();  // names of lines that were taken away
  }

  linear(name, x) {  // W x + b
    const w = this.p[name + ".weight"], b = this.p[name + ".bias"], out = new Float32Array(b.length), n = x.length;
    for (let i = 0, k = 0; i < out.length; i++) {
      let sum = b[i];
      for (let j = 0; j < n; j++) sum += w[k++] * x[j];
      out[i] = sum;
    }
    return out;
  }

  norm(name, x) {
    let mean = 0, square = 0;
    for (const v of x) mean += v / x.length;
    for (const v of x) square += (v - mean) ** 2 / x.length;
    const scale = 1 / Math.sqrt(square + 1e-5), w = this.p[name + ".weight"], b = this.p[name + ".bias"];
    return x.map((v, i) => (v - mean) * scale * w[i] + b[i]);
  }

  embed(token, index) {
    const d = this.d, table = this.p["embedding.weight"], x = new Float32Array(d);
    for (let i = 0; i < d; i++) {
      x[i] = table[token * d + i] * Math.sqrt(d);
      if (!this.lines.length) {  // sinusoidal positions; models with lines have none
        const angle = index * Math.exp((i - (i % 2)) * -Math.log(10000) / d);
        x[i] += i % 2 ? Math.cos(angle) : Math.sin(angle);
      }
    }
    return x;
  }

  // The token that each head sees at a step, or the first one where its line leads nowhere or was taken away.
  seen(attention, step, width) {
    const found = new Int32Array(this.heads);
    for (const line of this.lines) {
      if (line.attention !== attention || this.closed.has(line.name)) continue;
      const token = tokenOn(line, step, width);
      if (token >= 0 && (attention === "cross" || token <= step)) for (const head of line.heads) found[head] = token;
    }
    return found;
  }

  gather(name, values, tokens) {
    const d = this.d, size = d / this.heads, mixed = new Float32Array(d);
    for (let i = 0; i < d; i++) mixed[i] = values[tokens[Math.floor(i / size)]][i];
    return this.linear(name + ".output", mixed);
  }

  attend(name, x, keys, values, weights) {
    const q = this.linear(name + ".query", x), d = this.d, size = d / this.heads, mixed = new Float32Array(d);
    for (let h = 0; h < this.heads; h++) {
      const from = h * size, scores = new Float64Array(keys.length);
      let top = -Infinity, total = 0;
      for (let j = 0; j < keys.length; j++) {
        for (let i = from; i < from + size; i++) scores[j] += q[i] * keys[j][i];
        scores[j] /= Math.sqrt(size);
        top = Math.max(top, scores[j]);
      }
      for (let j = 0; j < keys.length; j++) total += scores[j] = Math.exp(scores[j] - top);
      for (let j = 0; j < keys.length; j++) {
        const share = scores[j] / total;
        if (weights) weights[j] = Math.max(weights[j], share);
        for (let i = from; i < from + size; i++) mixed[i] += share * values[j][i];
      }
    }
    return this.linear(name + ".output", mixed);
  }

  // Writes an output token by token; yields each with what was looked at.
  *write(source, width) {
    const lined = this.lines.length > 0, add = (x, y) => { for (let i = 0; i < x.length; i++) x[i] += y[i]; };
    const layers = [...Array(this.layers).keys()].map((l) => "decoder." + l);
    const read = source.map((token, column) => this.embed(token, column));
    const crossing = layers.map((layer) => {
      const of = (part) => read.map((x) => this.linear(`${layer}.cross_attention.${part}`, x));
      return { keys: lined ? [] : of("key"), values: of("value") };
    });
    const own = layers.map(() => ({ keys: [], values: [] }));
    let token = DATA.characters.indexOf("$");
    for (let step = 0; step <= width; step++) {
      const x = this.embed(token, step), cross = this.seen("cross", step, width), self = this.seen("self", step, width);
      const weights = lined ? null : new Float32Array(source.length);
      layers.forEach((layer, l) => {
        const s = layer + ".self_attention", c = layer + ".cross_attention", n = this.norm(layer + ".norm_self", x);
        own[l].values.push(this.linear(s + ".value", n));
        if (lined) {
          add(x, this.gather(s, own[l].values, self));
          add(x, this.gather(c, crossing[l].values, cross));
        } else {
          own[l].keys.push(this.linear(s + ".key", n));
          add(x, this.attend(s, n, own[l].keys, own[l].values, null));
          const asked = this.norm(layer + ".norm_cross", x);
          add(x, this.attend(c, asked, crossing[l].keys, crossing[l].values, weights));
        }
        const inner = this.linear(layer + ".feed_forward.0", this.norm(layer + ".norm_feed_forward", x));
        add(x, this.linear(layer + ".feed_forward.2", inner.map((v) => Math.max(v, 0))));
      });
      const logits = this.linear("head", this.norm("norm", x));
      token = logits.indexOf(Math.max(...logits));
      yield { token, weights, cross, self };
    }
  }
}

// The token on a line: of the source $a…+b…& by column, or of the start token and what was written.
function tokenOn(line, step, width) {
  const source = { $: 0, "+": width + 1, "&": 2 * width + 2, start: 0 };
  if (line.segment in source) return source[line.segment];
  const own = line.segment === "digits", size = own ? width + 1 : width, follows = line.follows[0];
  const slope = follows.includes("2place") ? 2 : follows.includes("place") ? 1 : 0;
  let place = slope * step + line.offset[0];
  if (follows.startsWith("first")) place = size - 1 - place;
  if (place < -1 || place > size || (slope === 0 && (place < 0 || place >= size))) return -1;
  if (own) return place + 1;
  return (line.segment === "a" ? width : 2 * width + 1) - place;
}

const digitsOf = (text, width) => text.padStart(width, "0").split("");
const widthOf = (a, b) => Math.max(DATA.width, Math.max(a.length, b.length) + 1);
function sourceOf(a, b) {
  const width = widthOf(a, b);
  return ["$", ...digitsOf(a, width), "+", ...digitsOf(b, width), "&"].map((c) => DATA.characters.indexOf(c));
}
const sumOf = (a, b) => (BigInt(a) + BigInt(b)).toString().padStart(widthOf(a, b), "0");
