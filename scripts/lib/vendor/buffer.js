// The part of Node's Buffer that @a2a-js/sdk uses, for browsers: bytes from and to base64. Without it every data part of
// A2A 0.3 and every file with bytes would be a ReferenceError there.

export class Buffer extends Uint8Array {
  static from(value, encoding) {
    const bytes = encoding === "base64" ? Uint8Array.from(atob(value), (character) => character.charCodeAt(0)) : value;
    return super.from(bytes);
  }

  static isBuffer(value) {
    return value instanceof Buffer;
  }

  toString(encoding) {
    if (encoding !== "base64") return new TextDecoder().decode(this);
    return btoa(Array.from(this, (byte) => String.fromCharCode(byte)).join(""));
  }
}
