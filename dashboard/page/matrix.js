// matrix.js is the table of resources by servers. Of its rows only those in sight are in the
// document, so that ten thousand cost no more than a hundred.

import { el, say, count } from './dom.js';
import { short, brief, unknown } from './encodings.js';

const words = {
  NoneRenews: 'no server renews its Lease',
  DeadServer: 'waits for a dead server',
  LateServer: 'waits for a server that does not renew its Lease',
  Unwritten: 'not written by the controllers',
  StockServer: 'waits for a server without Concord',
  SilentServer: 'waits for a silent server',
  Deleting: 'being deleted',
  Disagreement: 'servers disagree',
  WebhookDown: 'webhook down',
  BadObjects: 'bad objects',
  MigrationFailed: 'migration failed',
  Stalled: 'stalled',
  Paused: 'paused',
  Waiting: 'waits',
  Held: 'on hold',
};
const states = {
  moving: 'migrating',
  unsettled: 'not in one version yet',
  unknown: 'not known yet',
  settled: 'in one version',
  past: 'not stored any more',
};

// beyond is how many rows above and below those in sight are in the document.
const beyond = 8;

// before orders rows: what is not well comes first, then by group and name.
function before(a, b) {
  if (a.rank !== b.rank) return a.rank - b.rank;
  return a.order < b.order ? -1 : a.order > b.order ? 1 : 0;
}

// placed gives a row its place in that order.
export function placed(row) {
  const dot = row.resource.indexOf('.');
  row.order = dot < 0 ? '\u0000' + row.resource : row.resource.slice(dot + 1) + '\u0000' + row.resource.slice(0, dot);
  return row;
}

class Matrix extends HTMLElement {
  #rows = new Map();
  #sorted = [];
  #shown = [];
  #servers = [];
  #height = 36;
  #due = false;
  #query = '';
  #only = false;

  connectedCallback() {
    this.find = el('input', { type: 'search', id: 'find', autocomplete: 'off', spellcheck: false });
    this.only = el('input', { type: 'checkbox', id: 'only' });
    this.told = el('p', { className: 'told', role: 'status' });
    this.head = el('tr', { 'aria-rowindex': '1' });
    this.body = el('tbody');
    this.above = el('td');
    this.below = el('td');
    this.columns = el('colgroup');
    this.table = el('table', {},
      el('caption', { className: 'unseen' }, 'How each resource is stored, and what each server writes'),
      this.columns, el('thead', {}, this.head),
      el('tbody', { 'aria-hidden': 'true', className: 'space' }, el('tr', {}, this.above)),
      this.body,
      el('tbody', { 'aria-hidden': 'true', className: 'space' }, el('tr', {}, this.below)));
    this.view = el('div', { className: 'scroll', tabIndex: 0, role: 'region', 'aria-label': 'Resources by server, a table that scrolls' }, this.table);
    this.append(
      el('div', { className: 'tools' },
        el('label', { htmlFor: 'find' }, 'Find '), this.find,
        el('label', { htmlFor: 'only' }, this.only, ' only what is not in one version')),
      this.told, this.view);
    this.find.addEventListener('input', () => { this.#query = this.find.value.trim().toLowerCase(); this.#choose(); });
    this.only.addEventListener('change', () => { this.#only = this.only.checked; this.#choose(); });
    this.view.addEventListener('scroll', () => this.#later(), { passive: true });
    new ResizeObserver(() => this.#later()).observe(this.view);
  }

  // heads has the table show a column for each server.
  heads(servers) {
    if (JSON.stringify(servers) !== JSON.stringify(this.#servers)) {
      this.#servers = servers;
      this.#heads();
      this.#later();
    }
  }

  // show has the table show rows, by resource, each placed. They come nearly in their order,
  // in which sorting them takes no time.
  show(rows) {
    this.#rows = rows;
    this.#sorted = [...rows.values()].sort(before);
    this.#choose();
  }

  #heads() {
    const head = (text, title) => el('th', { scope: 'col', title: title ?? '' }, text);
    this.head.replaceChildren(head('Resource'), head('State'), head('Agreed'), head('May be stored in'),
      ...this.#servers.map((s) => el('th', { scope: 'col', title: s.id }, el('span', { className: 'unseen' }, s.id), el('span', { 'aria-hidden': 'true' }, brief(s.id)), el('br'),
        el('span', { className: s.state === 'serving' ? 'quiet' : 'warns' }, s.state === 'serving' ? (s.release ?? '') : s.state))));
    this.columns.replaceChildren(...['name', 'state', 'agreed', 'stored', ...this.#servers.map(() => 'server')].map((c) => el('col', { className: c })));
    for (const cell of [this.above, this.below]) cell.colSpan = 4 + this.#servers.length;
    this.table.setAttribute('aria-colcount', 4 + this.#servers.length);
    this.table.style.setProperty('--servers', this.#servers.length);
    for (const row of this.body.children) row.shown = undefined;
  }

  #choose() {
    this.#shown = this.#sorted.filter((r) => (!this.#only || r.state !== 'settled' && r.state !== 'past') && (!this.#query || r.resource.includes(this.#query)));
    this.table.setAttribute('aria-rowcount', this.#shown.length + 1);
    const all = count(this.#rows.size, 'resource');
    say(this.told, this.#shown.length === this.#rows.size ? all : this.#shown.length.toLocaleString('en') + ' of ' + all);
    this.#later();
  }

  // later draws once before the next frame, however often it is asked for.
  #later() {
    if (this.#due) return;
    this.#due = true;
    requestAnimationFrame(() => { this.#due = false; this.#draw(); });
  }

  #draw() {
    const one = this.body.firstElementChild;
    if (one) this.#height = one.getBoundingClientRect().height || this.#height;
    const first = Math.max(0, Math.floor(this.view.scrollTop / this.#height) - beyond);
    const last = Math.min(this.#shown.length, first + Math.ceil(this.view.clientHeight / this.#height) + 2 * beyond);
    this.above.style.height = first * this.#height + 'px';
    this.below.style.height = (this.#shown.length - last) * this.#height + 'px';
    while (this.body.children.length > Math.max(0, last - first)) this.body.lastElementChild.remove();
    for (let i = first; i < last; i++) {
      let tr = this.body.children[i - first];
      if (!tr) this.body.append(tr = el('tr'));
      const row = this.#shown[i];
      tr.setAttribute('aria-rowindex', i + 2);
      if (tr.shown !== row) {
        tr.className = row.state;
        tr.replaceChildren(...this.#cells(row));
        tr.shown = row;
      }
    }
  }

  #cells(row) {
    const say = (e) => short(row.resource, e);
    const stored = row.stored ?? [];
    const state = row.problems?.length ? row.problems.map((p) => words[p] ?? p).join(', ') : states[row.state];
    return [
      el('th', { scope: 'row', title: row.resource }, row.resource),
      el('td', { className: 'state', title: state }, state),
      el('td', { title: row.agreed ?? '' }, row.agreed ? say(row.agreed) : 'no agreement'),
      el('td', { title: stored.join(', '), className: stored.length > 1 ? 'differs' : '' }, stored.length ? stored.map(say).join(', ') : '?'),
      ...this.#servers.map((s) => this.#written(row, s)),
    ];
  }

  #written(row, server) {
    const e = row.written?.[server.id];
    if (!e) return el('td', { title: 'does not report it' }, el('span', { 'aria-hidden': 'true' }, '–'), el('span', { className: 'unseen' }, 'does not report it'));
    if (e === unknown) return el('td', { className: 'differs', title: 'does not tell' }, 'does not tell');
    return el('td', { title: e, className: row.agreed ? '' : 'differs' }, short(row.resource, e));
  }
}

customElements.define('concord-matrix', Matrix);
