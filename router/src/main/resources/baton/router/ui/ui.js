"use strict";
// Polls the router and draws; keeps nothing but the last answer.
const byId = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";
const EVERY_MS = 1000;
const SHOWN = 200;
const BINS = 40;
let paused = false;
let last = { running: [], ended: [] };

function element(name, text, className) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
}

function shape(name, attributes) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

const ms = (value) => value === undefined ? "–" : value < 10 ? value.toFixed(2) + " ms" : value < 10000 ? value.toFixed(0) + " ms" : (value / 1000).toFixed(1) + " s";

async function ask(path) {
  const headers = { Accept: "application/json" };
  const key = sessionStorage.getItem("baton.key");
  if (key) headers.Authorization = "Bearer " + key;
  const answer = await fetch(path, { headers, signal: AbortSignal.timeout(5000) });
  byId("key-field").hidden = answer.status !== 401;
  if (!answer.ok) throw new Error(path + ": HTTP " + answer.status);
  return answer.json();
}

function showInstances(answer) {
  byId("settings").textContent = "flow " + answer.flow + ", policy " + answer.policy
    + (answer.decode_policy === answer.policy ? "" : ", decode " + answer.decode_policy) + ", " + answer.running + " running";
  byId("instances").replaceChildren(...answer.instances.map((each) => {
    const row = element("tr");
    row.append(element("td", each.role), element("td", each.url + (each.registered ? " (registered)" : "")),
      element("td", each.state, each.state === "up" ? "up" : "down"),
      element("td", each.running, "number"), element("td", each.requests, "number"));
    return row;
  }));
}

// The time of a request as segments: [class, from, to] in milliseconds.
function course(request) {
  const end = request.total_ms ?? request.age_ms;
  const segments = [];
  let at = 0;
  const until = (kind, to) => { if (to > at) { segments.push([kind, at, to]); at = to; } };
  if (request.prefill) {
    until("queue", Math.min(request.prefill.sent_ms, end));
    until("prefill", Math.min(request.prefill.ended_ms ?? end, end));
  }
  until("handoff", request.ttft_ms ?? end);
  until("stream", end);
  return { segments, end };
}

function drawCourse(request, longest) {
  const svg = shape("svg", { class: "course", viewBox: "0 0 1000 16", preserveAspectRatio: "none", role: "img" });
  const { segments, end } = course(request);
  const title = shape("title", {});
  title.textContent = segments.map(([kind, from, to]) => kind + " " + ms(to - from)).join(", ") || ms(end);
  svg.append(title);
  for (const [kind, from, to] of segments) {
    svg.append(shape("rect", { x: 1000 * from / longest, width: Math.max(1, 1000 * (to - from) / longest), y: 2, height: 12, class: "f-" + kind }));
  }
  return svg;
}

function showRequests(answer) {
  const onlyFailures = byId("failures").checked;
  const failed = (each) => each.outcome !== undefined && each.outcome !== "ok";
  const all = [...answer.running, ...answer.ended].filter((each) => !onlyFailures || failed(each)).slice(0, 50);
  const longest = Math.max(1, ...all.map((each) => each.total_ms ?? each.age_ms));
  const focused = document.activeElement?.dataset?.request;
  byId("requests").replaceChildren(...all.map((each) => {
    const row = element("tr");
    const name = element("td");
    const button = element("button", each.id);
    button.type = "button";
    button.dataset.request = each.id;
    button.title = each.id;
    button.addEventListener("click", () => {
      history.replaceState(null, "", "#request=" + encodeURIComponent(each.id));
      explain(each.id);
    });
    name.append(button);
    const where = (each.prefill ? each.prefill.instance.replace("http://", "") + " → " : each.local_prefill ? "local → " : "")
      + (each.decode ? each.decode.instance.replace("http://", "") : "–");
    const outcome = each.state === "running" ? "running" : each.outcome + (each.status === 200 ? "" : " " + each.status);
    const picture = element("td", undefined, "wide");
    picture.append(drawCourse(each, longest));
    row.append(name, element("td", outcome, failed(each) ? "down" : ""), element("td", where),
      element("td", ms(each.ttft_ms), "number"), element("td", ms(each.total_ms ?? each.age_ms), "number"), picture);
    return row;
  }));
  if (focused) [...byId("requests").querySelectorAll("button")].find((each) => each.dataset.request === focused)?.focus();
}

function distribution(name, values) {
  const svg = byId(name);
  const goal = Number(byId(name + "-goal").value) || 0;
  svg.replaceChildren();
  const sorted = values.filter((value) => value > 0).sort((a, b) => a - b);
  if (sorted.length === 0) {
    byId(name + "-text").textContent = "no requests yet";
    svg.setAttribute("aria-label", "no requests yet");
    return;
  }
  const at = (share) => sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))];
  // Logarithmic bins from the smallest to the largest.
  const low = Math.log(sorted[0]);
  const span = Math.max(Math.log(sorted[sorted.length - 1]) - low, 0.1);
  const counts = new Array(BINS).fill(0);
  for (const value of sorted) counts[Math.min(BINS - 1, Math.floor(BINS * (Math.log(value) - low) / span))]++;
  const most = Math.max(...counts);
  counts.forEach((count, bin) => {
    const height = 115 * count / most;
    const from = Math.exp(low + span * bin / BINS);
    svg.append(shape("rect", { x: 400 * bin / BINS, width: 400 / BINS - 1, y: 120 - height, height, class: goal && from >= goal ? "over" : "bar" }));
  });
  if (goal) {
    const x = 400 * Math.min(1, Math.max(0, (Math.log(goal) - low) / span));
    svg.append(shape("line", { x1: x, x2: x, y1: 0, y2: 120, class: "goal" }));
  }
  const text = sorted.length + " requests, " + ms(sorted[0]) + " to " + ms(sorted[sorted.length - 1]) + ": p50 " + ms(at(0.5)) + ", p90 " + ms(at(0.9)) + ", p99 " + ms(at(0.99))
    + (goal ? "; " + (100 * sorted.filter((value) => value <= goal).length / sorted.length).toFixed(1) + " % within the goal" : "");
  byId(name + "-text").textContent = text;
  svg.setAttribute("aria-label", text);
}

function showTimes(answer) {
  const good = answer.ended.filter((each) => each.outcome === "ok");
  distribution("ttft", good.map((each) => each.ttft_ms));
  distribution("itl", good.map((each) => each.mean_itl_ms));
}

async function explain(id) {
  const panel = byId("explanation");
  panel.hidden = false;
  byId("explanation-title").textContent = "Request " + id;
  try {
    const answer = await ask("/v1/requests/" + encodeURIComponent(id) + "/explain");
    byId("explanation-text").textContent = answer.text;
    byId("explanation-steps").replaceChildren(...answer.steps.map((step) => element("li", ms(step.at_ms) + ": " + step.what)));
  } catch (failure) {
    byId("explanation-text").textContent = failure.message;
    byId("explanation-steps").replaceChildren();
  }
  panel.focus();
}

async function poll() {
  if (!paused && !document.hidden) {
    try {
      const [instances, requests] = await Promise.all([ask("/v1/instances"), ask("/v1/requests?limit=" + SHOWN)]);
      last = requests;
      showInstances(instances);
      showRequests(requests);
      showTimes(requests);
      status("up to date");
    } catch (failure) {
      status("no answer: " + failure.message);
    }
  }
  setTimeout(poll, EVERY_MS);
}

function status(text) {
  if (byId("status").textContent !== text) byId("status").textContent = text;
}

for (const name of ["ttft", "itl"]) {
  const goal = byId(name + "-goal");
  goal.value = localStorage.getItem("baton." + name) || "";
  goal.addEventListener("input", () => { localStorage.setItem("baton." + name, goal.value); showTimes(last); });
}
byId("key").addEventListener("change", () => sessionStorage.setItem("baton.key", byId("key").value.trim()));
byId("failures").addEventListener("change", () => showRequests(last));
byId("pause").addEventListener("click", () => {
  paused = !paused;
  byId("pause").setAttribute("aria-pressed", String(paused));
  status(paused ? "paused" : "up to date");
});
function close() {
  byId("explanation").hidden = true;
  history.replaceState(null, "", location.pathname);
}

byId("close").addEventListener("click", close);
document.addEventListener("keydown", (event) => { if (event.key === "Escape") close(); });
// A request's explanation has an address of its own.
if (location.hash.startsWith("#request=")) explain(decodeURIComponent(location.hash.slice("#request=".length)));
poll();
