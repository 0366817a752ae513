// encodings.js says encodings in few letters. One is "<group>/<version>", "<version>" in the
// core group, and "+<provider>:<version>:<key>:<fingerprint>" follows where it is encrypted.

export const unknown = 'Unknown';

// short is an encoding of a resource without the group if that is the resource's own.
export function short(resource, encoding) {
  if (encoding === unknown) return '?';
  const [plain, seal] = encoding.split('+');
  const slash = plain.lastIndexOf('/');
  const group = slash < 0 ? '' : plain.slice(0, slash);
  const dot = resource.indexOf('.');
  const own = dot < 0 ? '' : resource.slice(dot + 1);
  const version = group === own ? plain.slice(slash + 1) : plain;
  return seal ? version + ' + ' + (seal.split(':')[2] ?? seal) : version;
}

// brief is a server's name in few letters.
export function brief(id) {
  return id.length > 14 ? '…' + id.slice(-6) : id;
}
