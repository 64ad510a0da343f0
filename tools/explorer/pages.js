// Where an entry of a page lies and what a byte holds: division by nested digits, as kvformat/layouts/region.py does it.

function digitsBits(index, digits) {
  let address = 0;
  for (const [size, stride] of [...digits].reverse()) {
    address += (index % size) * stride;
    index = Math.floor(index / size);
  }
  return address;
}

function regionSteps(region) {
  const steps = [];
  region.digits.forEach((digits, axis) => {
    let weight = 1;
    for (const [size, stride] of [...digits].reverse()) {
      if (size > 1) steps.push({ stride, size, axis, weight });
      weight *= size;
    }
  });
  return steps.sort((a, b) => b.stride - a.stride || b.size - a.size);
}

// The [slot, head, column] whose entry holds that bit of the page, or null.
function findEntry(region, bit) {
  let rest = bit - region.offset * 8;
  if (rest < 0) return null;
  region.steps ??= regionSteps(region);
  const found = [0, 0, 0];
  for (const { stride, size, axis, weight } of region.steps) {
    const digit = Math.floor(rest / stride);
    rest %= stride;
    if (digit >= size) return null;
    found[axis] += digit * weight;
  }
  return rest < region.bits && found.every((each, axis) => each < region.counts[axis]) ? found : null;
}

function dimsOf(region, column) {
  const first = region.firstDim + column * region.dimsPerEntry;
  return [first, first + region.dimsPerEntry - 1];
}

// What a byte holds: {byte, part: "padding"} or its region, side, part, slot, head and dims [first, last].
function explainByte(page, byte) {
  for (const region of page.regions) {
    const first = findEntry(region, byte * 8);
    const last = findEntry(region, byte * 8 + 7);
    if (first && last) {
      const dims = [dimsOf(region, first[2])[0], dimsOf(region, last[2])[1]];
      return { byte, region: region.name, side: region.side, part: region.part, slot: first[0], head: first[1], dims };
    }
  }
  return { byte, part: "padding" };
}

function byteText(found) {
  if (found.part === "padding") return `byte ${found.byte}: padding`;
  const [first, last] = found.dims;
  const dims = first === last ? `dim ${first}` : `dims ${first}..${last}`;
  return `byte ${found.byte}: ${found.region}: ${found.part} of ${found.side}, slot ${found.slot}, head ${found.head}, ${dims}`;
}

// Where an entry lies: {byte, bit, bits}, or a string that says what is wrong with the question.
function locate(page, { side, part, slot, head, dim }) {
  const held = page.regions.filter((each) => each.side === side && each.part === part);
  const region = held.find((each) => dim >= each.firstDim && dim < each.firstDim + each.counts[2] * each.dimsPerEntry);
  if (!region) return held.length ? `no ${part} of ${side} for dim ${dim}` : `this page has no ${part} of ${side}`;
  const [slots, heads] = region.counts;
  if (!(slot >= 0 && slot < slots)) return `slot must be an integer in 0..${slots - 1}`;
  if (!(head >= 0 && head < heads)) return `head must be an integer in 0..${heads - 1}`;
  const column = Math.floor((dim - region.firstDim) / region.dimsPerEntry);
  const [a, b, c] = region.digits;
  const address = region.offset * 8 + digitsBits(slot, a) + digitsBits(head, b) + digitsBits(column, c);
  return { byte: Math.floor(address / 8), bit: address % 8, bits: region.bits };
}

function placeText(question, found) {
  const { side, part, slot, head, dim } = question;
  return `${part} of ${side}, slot ${slot}, head ${head}, dim ${dim}: ${bitsText(found)}`;
}

function bitsText({ byte, bit, bits }) {
  if (bits < 8) return `byte ${byte}, bits ${bit}..${bit + bits - 1}`;
  const last = byte + bits / 8 - 1;
  return last === byte ? `byte ${byte}` : `bytes ${byte}..${last}`;
}
