// Encoding by search in the tables of decision borders, and what lies around a number.

// A format's tables with their integers as BigInt, made once.
function prepared(format) {
  const dyadic = (row) => [BigInt(row[0]), ...row.slice(1)];
  const table = (half) => ({ ...half, borders: half.borders.map(dyadic) });
  const tables = Object.fromEntries(Object.entries(format.tables).map(([key, halves]) => [key, halves.map(table)]));
  return { ...format, steps: format.steps.map(dyadic), tables };
}

// How many rows of a sorted list hold, where those that hold come first.
function countWhile(rows, holds) {
  let low = 0;
  let high = rows.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (holds(rows[middle])) low = middle + 1;
    else high = middle;
  }
  return low;
}

function encode(format, x, rounding, overflow) {
  if (x.nan) return format.nan;
  const table = format.tables[`${rounding}/${overflow}`][x.negative ? 1 : 0];
  if (x.infinite) return table.infinity;
  const passed = countWhile(table.borders, ([m, e, closed]) => {
    const order = compareMagnitude(x, m, e);
    return order > 0 || (order === 0 && closed === 1);
  });
  return passed ? table.borders[passed - 1][3] : table.zero;
}

// The value below, the number itself where it is one, the value above, and the midpoints between: as `explain` says.
function ladder(format, x, rounding) {
  if (x.nan || x.infinite) return { rungs: [], tie: false };
  const placed = format.kind === "exponent" ? { ...x, negative: false } : x;
  const steps = format.steps;
  const low = countWhile(steps, ([m, e]) => compare(placed, m, e) > 0);
  const high = countWhile(steps, ([m, e]) => compare(placed, m, e) >= 0);
  const rung = (what, index) => ({ what, number: stepText(format, index, placed), code: stepCode(format, index, placed) });
  const middle = (index) => ({ what: "midpoint", number: steps[index][4] });
  const rungs = [];
  if (low > 0) rungs.push(rung("below", low - 1));
  if (low > 0 && low < steps.length) rungs.push(middle(low - 1));
  if (low < high) rungs.push(rung("given", low));
  if (low < high && high < steps.length) rungs.push(middle(low));
  if (high < steps.length) rungs.push(rung("above", high));
  const between = low === high && low > 0 && low < steps.length;
  const tie = between && rounding.startsWith("nearest") && onMidpoint(placed, steps[low - 1], steps[low]);
  return { rungs, tie };
}

function onMidpoint(x, lower, upper) {
  const e = Math.min(lower[1], upper[1]);
  const sum = (lower[0] << BigInt(lower[1] - e)) + (upper[0] << BigInt(upper[1] - e));
  return compare(x, sum, e - 1) === 0;
}

function stepText(format, index, x) {
  const [m, , text] = format.steps[index];
  return m === 0n && x.negative ? "-0" : text;
}

function stepCode(format, index, x) {
  const [m, , , code] = format.steps[index];
  return m === 0n && x.negative ? code | format.negativeZero : code;
}

// Which authorities give which code for a binary32 pattern: [[code, [names]], ...] in the order of the first name.
function byAuthority(format, bits) {
  const groups = new Map();
  for (const [name, runs] of Object.entries(format.authorities)) {
    const passed = countWhile(runs, (run) => parseInt(run.slice(0, 8), 16) <= bits);
    const code = parseInt(runs[passed - 1].slice(8), 16);
    if (!groups.has(code)) groups.set(code, []);
    groups.get(code).push(name);
  }
  return [...groups];
}

// The bit pattern a user wrote, as `kvformat explain --code` reads it; null for what is none.
function parseCode(text, format) {
  const word = text.trim().replaceAll("_", "");
  if (!/^(0x[0-9a-f]+|0b[01]+|0o[0-7]+|0+|[1-9][0-9]*)$/i.test(word)) return null;
  const code = Number(word);
  return code < format.codes.length ? code : null;
}

// The number that a code stands for.
function decoded(format, code) {
  const text = format.codes[code][2];
  return parseNumber(text.replace("~", "")) && format.codes[code][3] !== "nan"
    ? parseNumber(format.codes[code][3])
    : { nan: true };
}
