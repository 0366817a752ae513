// dom.js makes and keeps elements. Text goes in as text, never as HTML.

// el makes an element. Properties that begin with "aria-" or "data-", and role, are attributes.
export function el(tag, props = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (name === 'role' || name.includes('-')) made.setAttribute(name, value);
    else made[name] = value;
  }
  return fill(made, ...children);
}

// fill replaces an element's children; those that are null or empty are left out.
export function fill(e, ...children) {
  e.replaceChildren(...children.filter((c) => c !== null && c !== undefined && c !== ''));
  return e;
}

// keyed has parent's children show items, one each, in their order. An item that stays keeps
// its element, and with it focus and what was opened; render is called when it is new or
// differs from before.
export function keyed(parent, items, key, render, tag = 'li') {
  const old = new Map([...parent.children].map((e) => [e.dataset.key, e]));
  const used = new Map();
  let at = parent.firstElementChild;
  for (const item of items) {
    let name = key(item);
    const again = used.get(name) ?? 0;
    used.set(name, again + 1);
    if (again) name += '#' + again;
    let e = old.get(name);
    if (e) old.delete(name);
    else e = el(tag, { 'data-key': name });
    const text = JSON.stringify(item);
    if (e.shown !== text) {
      render(e, item);
      e.shown = text;
    }
    if (at === e) at = at.nextElementSibling;
    else parent.insertBefore(e, at);
  }
  for (const e of old.values()) e.remove();
}

// say changes an element's text where it differs, so that a live region speaks once.
export function say(e, text) {
  if (e.textContent !== text) e.textContent = text;
}

export function count(n, noun) {
  return n.toLocaleString('en') + ' ' + noun + (n === 1 ? '' : 's');
}
