/** What several views need of Preact: data that is loaded, events, the clock, focus. */

import { useCallback, useEffect, useRef, useState } from "../vendor/htm-preact.js";
import { feed } from "./events.js";

const LOADING = { data: null, problem: null, isStale: true };

/**
 * What `load(signal)` gives, loaded anew whenever one of `inputs` changes and by `reload()`.
 *
 * Until that is there the earlier data stays; `isStale`: it is of earlier inputs. `update(change)` replaces it by
 * `change(data)`, once there is some.
 */
export function useLoaded(load, inputs) {
  const [state, setState] = useState(LOADING);
  const abort = useRef(null);
  const reload = useCallback(async () => {
    abort.current?.abort();
    const own = (abort.current = new AbortController());
    const settle = (change) => {
      if (abort.current === own) setState((before) => ({ ...before, ...change, isStale: false }));
    };
    try {
      settle({ data: await load(own.signal), problem: null });
    } catch (problem) {
      if (problem.name !== "AbortError") settle({ problem });
    }
  }, inputs);
  useEffect(() => {
    setState((before) => ({ ...before, isStale: true }));
    reload();
    return () => abort.current?.abort();
  }, [reload]);
  const update = useCallback((change) => {
    setState((before) => (before.data ? { ...before, data: change(before.data) } : before));
  }, []);
  return { ...state, reload, update };
}

/** Calls `listener({name, data})` for each event of the gateway while the component is shown. */
export function useEvents(listener) {
  const newest = useRef(listener);
  newest.current = listener;
  useEffect(() => feed.listen((event) => newest.current(event)), []);
}

/**
 * "connecting", "live" or "lost"; `onLive` is called when it becomes live, also for the first time: what was loaded
 * before that may lack what happened since, as no event told of it.
 */
export function useConnection(onLive) {
  const [state, setState] = useState(feed.state);
  const newest = useRef(onLive);
  newest.current = onLive;
  useEffect(() => {
    // It may have changed between the first drawing and now.
    setState(feed.state);
    return feed.onState((next) => {
      if (next === "live") newest.current?.();
      setState(next);
    });
  }, []);
  return state;
}

/** A function that calls the newest `action` at most once in `interval` milliseconds, and once more after the last call. */
export function useThrottled(action, interval) {
  const state = useRef({ timer: 0, last: 0 });
  const newest = useRef(action);
  newest.current = action;
  useEffect(() => () => clearTimeout(state.current.timer), []);
  return useCallback(() => {
    const own = state.current;
    if (own.timer) return;
    const run = () => {
      own.timer = 0;
      own.last = Date.now();
      newest.current();
    };
    own.timer = setTimeout(run, Math.max(0, own.last + interval - Date.now()));
  }, [interval]);
}

/** Milliseconds since the epoch, renewed each `interval` milliseconds. */
export function useNow(interval) {
  const [now, setNow] = useState(Date.now());
  useEffect(() => {
    const timer = setInterval(() => setNow(Date.now()), interval);
    return () => clearInterval(timer);
  }, [interval]);
  return now;
}

/** A ref for the heading of a view: it is focused when the view is opened from another one. */
export function useHeading(isFirstView) {
  const heading = useRef(null);
  useEffect(() => {
    if (!isFirstView) heading.current?.focus();
  }, []);
  return heading;
}
