// The page itself: reads the two forms and shows the answers.

const DATA = JSON.parse(document.getElementById("data").textContent);
const FORMATS = DATA.formats.map(prepared);
const $ = (id) => document.getElementById(id);

function cell(row, text, name = "") {
  const made = row.insertCell();
  made.textContent = text;
  if (name) made.className = name;
  return made;
}

// --- numbers -------------------------------------------------------------------------------------------------------

function showNumbers() {
  const text = $("value").value;
  const isCode = $("is-code").checked;
  const body = $("answers").tBodies[0];
  body.replaceChildren();
  $("number-error").textContent = "";
  $("number-note").textContent = "";
  const x = isCode ? null : parseNumber(text);
  if (!isCode && !x) {
    $("number-error").textContent = `${text.slice(0, 40)} is not a number`;
    return;
  }
  if (isCode && FORMATS.every((format) => parseCode(text, format) === null)) {
    $("number-error").textContent = `${text.slice(0, 40)} is not a code`;
    return;
  }
  if (x) $("number-note").textContent = singleNote(x);
  for (const format of FORMATS) showFormat(body, format, x, isCode ? parseCode(text, format) : null);
}

function singleNote(x) {
  const bits = float32Bits(x);
  const shown = `float32 0x${bits.toString(16).toUpperCase().padStart(8, "0")}`;
  const exactly = x.nan || x.infinite || isFloat32(x, bits);
  return exactly ? `${shown}.` : `Not a float32; the authorities that take one are asked about the nearest, ${shown}.`;
}

function policyOf(format) {
  const overflow = format.overflows.includes($("overflow").value) ? $("overflow").value : format.overflows[0];
  const rounding = format.roundings.includes($("rounding").value) ? $("rounding").value : format.roundings[0];
  return [rounding, overflow];
}

function showFormat(body, format, x, code) {
  const row = body.insertRow();
  row.dataset.format = format.name;
  cell(row, format.name);
  if (!x && code === null) {
    cell(row, "has no such code").colSpan = 7;
    return;
  }
  const [rounding, overflow] = policyOf(format);
  const number = x ?? decoded(format, code);
  const chosen = x ? encode(format, x, rounding, overflow) : code;
  const { rungs, tie } = ladder(format, number, rounding);
  const [name, bits, value] = format.codes[chosen];
  cell(row, name, "code").title = format.codes[chosen][3];
  cell(row, bits);
  cell(row, value);
  const shown = (rung) => (rung.code === undefined ? rung.number : `${rung.number} ${format.codes[rung.code][0]}`);
  for (const what of ["below", "midpoint", "above"]) {
    const found = rungs.filter((rung) => rung.what === what).map(shown);
    cell(row, found.join(", "), what === "midpoint" && tie ? "tie" : "");
  }
  row.dataset.ladder = JSON.stringify(rungs);
  row.dataset.tie = String(tie);
  showAuthorities(cell(row, "", "by"), format, x);
}

function showAuthorities(target, format, x) {
  if (!x) return;
  const groups = byAuthority(format, float32Bits(x));
  target.classList.toggle("apart", groups.length > 1);
  target.textContent = groups.map(([code, names]) => `${format.codes[code][0]}: ${names.join(", ")}`).join("; ");
}

// --- pages ---------------------------------------------------------------------------------------------------------

const CELL = 10;
const ACROSS = 64;
const COLOURS = ["#4e79a7", "#f28e2b", "#59a14f", "#e15759", "#76b7b2", "#edc948", "#b07aa1", "#9c755f"];
let page = DATA.pages[0];
let marked = null;

function fill(select, values) {
  const before = select.value;
  select.replaceChildren(...values.map((value) => new Option(value)));
  if (values.includes(before)) select.value = before;
}

const unique = (values) => [...new Set(values)];
const orderName = (spec) => (spec.v_scales ? `${spec.order}, V scales ${spec.v_scales}` : spec.order);
const sizeName = (spec) => {
  const dtype = spec.dtype ? `, ${spec.dtype}` : "";
  return `${spec.block_size} slots, ${spec.num_kv_heads} heads, ${spec.head_size} dims${dtype}`;
};

function choosePage() {
  let left = DATA.pages;
  for (const [id, name] of [
    ["layout", (spec) => spec.name],
    ["mode", (spec) => spec.mode],
    ["order", orderName],
    ["size", sizeName],
  ]) {
    fill($(id), unique(left.map((each) => name(each.spec))));
    left = left.filter((each) => name(each.spec) === $(id).value);
  }
  page = left[0];
  marked = null;
  fill($("side"), unique(page.regions.map((region) => region.side)));
  fill($("part"), unique(page.regions.map((region) => region.part)));
  $("page-about").textContent = `${page.bytes} bytes; recipe ${page.recipe}. Click a byte, or ask for a place.`;
  $("legend").replaceChildren(...page.regions.map(legendItem));
  $("page-answer").textContent = "";
  draw();
}

function colour(region) {
  return COLOURS[page.regions.indexOf(region) % COLOURS.length];
}

function legendItem(region) {
  const item = document.createElement("li");
  const box = document.createElement("i");
  box.style.background = colour(region);
  item.append(box, `${region.name}, from byte ${region.offset}, ${region.bits} bits an entry`);
  return item;
}

function draw() {
  const canvas = $("map");
  const rows = Math.ceil(page.bytes / ACROSS);
  canvas.width = ACROSS * CELL;
  canvas.height = rows * CELL;
  const ink = canvas.getContext("2d");
  for (let byte = 0; byte < page.bytes; byte += 1) {
    const region = page.regions.find((each) => findEntry(each, byte * 8));
    const found = region && findEntry(region, byte * 8);
    ink.globalAlpha = found && (found[0] + found[1]) % 2 ? 0.72 : 1; // neighbouring rows apart
    ink.fillStyle = region ? colour(region) : "#9aa4b5";
    ink.fillRect((byte % ACROSS) * CELL, Math.floor(byte / ACROSS) * CELL, CELL - 1, CELL - 1);
  }
  ink.globalAlpha = 1;
}

function mark(byte, count) {
  draw();
  marked = byte;
  const ink = $("map").getContext("2d");
  ink.strokeStyle = "#000";
  ink.lineWidth = 3;
  for (let each = byte; each < byte + count; each += 1) {
    ink.strokeRect((each % ACROSS) * CELL, Math.floor(each / ACROSS) * CELL, CELL - 1, CELL - 1);
  }
}

function showByte(byte) {
  if (!Number.isInteger(byte) || byte < 0 || byte >= page.bytes) {
    $("page-answer").textContent = `byte must be an integer in 0..${page.bytes - 1}`;
    return;
  }
  $("byte").value = String(byte);
  $("page-answer").textContent = byteText(explainByte(page, byte));
  mark(byte, 1);
}

const whole = (text) => (/^\d+$/.test(text.trim()) ? Number(text) : NaN);

function showPlace() {
  const question = { side: $("side").value, part: $("part").value };
  for (const id of ["slot", "head", "dim"]) question[id] = whole($(id).value);
  const found = locate(page, question);
  if (typeof found === "string") {
    $("page-answer").textContent = found;
    return;
  }
  $("page-answer").textContent = placeText(question, found);
  mark(found.byte, Math.max(1, found.bits / 8));
}

function clicked(event) {
  const box = $("map").getBoundingClientRect();
  const column = Math.floor((event.clientX - box.left) / CELL);
  const row = Math.floor((event.clientY - box.top) / CELL);
  if (column >= 0 && column < ACROSS) showByte(row * ACROSS + column);
}

function pressed(event) {
  const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -ACROSS, ArrowDown: ACROSS };
  if (!(event.key in steps)) return;
  event.preventDefault();
  showByte(Math.min(page.bytes - 1, Math.max(0, (marked ?? 0) + steps[event.key])));
}

function asked(form, answer) {
  $(form).addEventListener("submit", (event) => {
    event.preventDefault();
    answer();
  });
}

$("number-form").addEventListener("input", showNumbers);
asked("number-form", showNumbers);
$("page-form").addEventListener("input", choosePage);
asked("page-form", choosePage);
$("byte").addEventListener("input", () => showByte(whole($("byte").value)));
asked("byte-form", () => showByte(whole($("byte").value)));
asked("place-form", showPlace);
$("map").addEventListener("click", clicked);
$("map").addEventListener("keydown", pressed);
if (location.pathname.endsWith("/explorer.html") && location.protocol !== "file:") $("home").href = "./";
showNumbers();
choosePage();
