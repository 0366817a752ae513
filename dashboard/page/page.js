// page.js follows the cluster's events and gives each part of the page what it shows. A
// connection that is lost is made again, and until then the page says how old it is.

import './elements.js';
import { placed } from './matrix.js';
import { el, say } from './dom.js';

// silence is how long nothing may be heard: an event comes every three seconds.
const silence = 10000;
const find = (s) => document.querySelector(s);

let source = null;
let heard = 0;
let failures = 0;
let lost = null; // why, while there is no connection
let since = null; // when what is shown was last known to be so
let picture = null;
let rows = new Map();
let incoming = null; // the rows of a new connection, until it has sent all
let due = new Set();

function connect() {
  source?.close();
  source = new EventSource('page/stream');
  heard = Date.now();
  incoming = new Map();
  source.addEventListener('beat', hear);
  source.addEventListener('picture', (e) => { hear(); look(JSON.parse(e.data)); });
  source.addEventListener('rows', (e) => { hear(); take(JSON.parse(e.data)); });
  source.addEventListener('whole', () => {
    hear();
    if (incoming) [rows, incoming] = [incoming, null];
    later('rows');
  });
  source.addEventListener('error', () => {
    lose('the connection is lost');
    source.close();
    failures++;
    setTimeout(connect, Math.min(10000, 250 * 2 ** failures));
  });
}

// look takes a picture, but for one of a cluster that is being read where there is an older whole one.
function look(next) {
  if (next.reading && picture && !picture.reading) return;
  picture = next;
  later('picture');
}

function take(change) {
  const to = incoming ?? rows;
  for (const row of change.rows) to.set(row.resource, placed(row));
  for (const name of change.gone) to.delete(name);
  if (incoming && rows.size < incoming.size) rows = incoming; // at first, show what is there
  if (to === rows) later('rows');
}

function hear() {
  heard = Date.now();
  failures = 0;
  lost = null;
  tell();
}

function lose(why) {
  lost = why;
  tell();
}

// tell says whether what is shown is so.
function tell() {
  const why = lost ?? (picture?.unreachable ? 'the cluster does not answer: ' + picture.unreachable : null);
  document.body.classList.toggle('stale', why !== null);
  if (why === null) {
    since = null;
    say(find('#live'), picture && !picture.reading ? 'live' : 'connected, the cluster is being read');
    return;
  }
  since ??= new Date();
  say(find('#live'), (picture ? 'stale since ' + since.toLocaleTimeString() : 'not connected') + ': ' + why + '; trying again');
}

// later draws a part once before the next frame, however often it is asked for.
function later(part) {
  if (!due.size) requestAnimationFrame(draw);
  due.add(part);
}

function draw() {
  const parts = due;
  due = new Set();
  if (parts.has('picture')) drawPicture();
  if (parts.has('rows')) find('concord-matrix').show(rows);
}

function drawPicture() {
  tell();
  say(find('#of'), picture.of);
  say(find('#headline'), picture.headline);
  document.title = (picture.problems.length ? '(' + (picture.problems.length + (picture.moreProblems ?? 0)) + ') ' : '') + 'Concord';
  const unread = find('#unread');
  unread.hidden = !picture.unread?.length;
  unread.replaceChildren(...(picture.unread ?? []).map((text) => el('li', {}, text)));
  find('#problems').hidden = !picture.problems.length;
  find('concord-problems').show(picture.problems, picture.moreProblems);
  find('#migrations').hidden = !picture.moving.length;
  find('concord-migrations').show(picture.moving, picture.moreMoving);
  find('concord-servers').show(picture.servers);
  find('concord-releases').show(picture.releases);
  find('concord-timeline').show(picture.timeline);
  find('concord-matrix').heads(picture.servers.map(({ id, release, state }) => ({ id, release, state })));
  for (const name of picture.reading ? ['useful'] : ['useful', 'whole']) {
    if (!performance.getEntriesByName(name).length) requestAnimationFrame(() => performance.mark(name));
  }
}

setInterval(() => {
  if (!lost && Date.now() - heard > silence) {
    lose('nothing is heard');
    connect();
  }
}, 1000);
connect();
