// Exact numbers: {nan} or {negative, infinite} or {negative, num, den} with BigInt num >= 0, den > 0.

const LONGEST = 400;

function number(negative, num, den = 1n) {
  return { negative, num, den };
}

// What the user wrote, exactly; null for what is no number. The grammar is that of `kvformat explain`.
function parseNumber(text) {
  const word = text.trim().toLowerCase();
  const negative = word.startsWith("-");
  const body = negative ? word.slice(1) : word.replace(/^\+/, "");
  if (body === "inf" || body === "infinity") return { negative, infinite: true };
  if (body === "nan") return { nan: true };
  if (body.length > LONGEST) return null;
  let match = /^(\d+)\/(\d*[1-9]\d*)$/.exec(body);
  if (match) return number(negative, BigInt(match[1]), BigInt(match[2]));
  match = /^(?:(\d+)\.?(\d*)|\.(\d+))(?:e([+-]?\d{1,4}))?$/.exec(body);
  if (match) {
    const fraction = match[2] ?? match[3] ?? "";
    const digits = BigInt((match[1] ?? "") + fraction);
    return scaled(negative, digits, 10n, Number(match[4] ?? 0) - fraction.length);
  }
  match = /^0x([0-9a-f]*)\.?([0-9a-f]*)(?:p([+-]?\d{1,4}))?$/.exec(body);
  if (match && match[1] + match[2] !== "") {
    return scaled(negative, BigInt(`0x${match[1]}${match[2]}`), 2n, Number(match[3] ?? 0) - 4 * match[2].length);
  }
  return null;
}

function scaled(negative, digits, base, exponent) {
  const power = base ** BigInt(Math.abs(exponent));
  return exponent < 0 ? number(negative, digits, power) : number(negative, digits * power);
}

// The magnitude of x against m * 2^e: negative, 0 or positive.
function compareMagnitude(x, m, e) {
  const size = m < 0n ? -m : m;
  const left = e < 0 ? x.num << BigInt(-e) : x.num;
  const right = (e < 0 ? size : size << BigInt(e)) * x.den;
  return left < right ? -1 : left > right ? 1 : 0;
}

// The number x, sign included, against m * 2^e.
function compare(x, m, e) {
  if (x.num === 0n) return m < 0n ? 1 : m > 0n ? -1 : 0;
  if (x.negative !== m < 0n) return x.negative ? -1 : 1;
  return x.negative ? -compareMagnitude(x, m, e) : compareMagnitude(x, m, e);
}

// The binary32 bit pattern of x, rounded once to nearest even; a NaN is 7FC00000.
function float32Bits(x) {
  if (x.nan) return 0x7fc00000;
  const sign = x.negative ? 0x80000000 : 0;
  if (x.infinite) return (sign + 0x7f800000) >>> 0;
  if (x.num === 0n) return sign >>> 0;
  let exponent = x.num.toString(2).length - x.den.toString(2).length;
  if (compareMagnitude(x, 1n, exponent) < 0) exponent -= 1;
  const unit = Math.max(exponent, -126) - 23;
  const num = unit < 0 ? x.num << BigInt(-unit) : x.num;
  const den = unit < 0 ? x.den : x.den << BigInt(unit);
  let steps = num / den;
  const twice = 2n * (num - steps * den);
  if (twice > den || (twice === den && steps & 1n)) steps += 1n;
  // the integer of steps carries into the exponent field by itself, up to Inf
  const bits = exponent < -126 ? steps : steps + (BigInt(exponent + 126) << 23n);
  return (sign + Number(bits > 0x7f800000n ? 0x7f800000n : bits)) >>> 0;
}

// Whether a finite x is the number that a binary32 pattern stands for.
function isFloat32(x, bits) {
  const field = (bits >>> 23) & 0xff;
  if (field === 0xff) return false;
  const steps = BigInt((bits & 0x7fffff) + (field ? 0x800000 : 0));
  return compareMagnitude(x, steps, Math.max(field, 1) - 150) === 0;
}
