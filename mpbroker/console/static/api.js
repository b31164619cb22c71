// Questions to the console's server. The token is kept for this tab alone, and never in an address.

const KEY = "mpbroker.console.token";

export const token = {
  get: () => sessionStorage.getItem(KEY) || "",
  set: (text) => (text ? sessionStorage.setItem(KEY, text) : sessionStorage.removeItem(KEY)),
};

/** An answer that is an error. `status` 0: there was no answer. */
export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

function headers(more) {
  return token.get() ? { ...more, authorization: `Bearer ${token.get()}` } : more;
}

async function asked(path, options) {
  let response;
  try {
    response = await fetch(path, { cache: "no-store", referrerPolicy: "no-referrer", ...options });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "the console does not answer; the broker may have stopped, or be starting");
  }
  if (response.ok) return response;
  let why = `${response.status} ${response.statusText}`;
  try {
    why = (await response.json()).error || why;
  } catch { /* a proxy's page: the status has to do */ }
  throw new ApiError(response.status, why);
}

/** Ask for `/api/name?params`. Raises ApiError. */
export async function get(name, params = {}, signal) {
  const query = new URLSearchParams(Object.entries(params).filter(([, value]) => value !== "" && value !== undefined));
  const response = await asked(`/api/${name}?${query}`, { headers: headers({}), signal });
  try {
    return await response.json();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "the answer broke off");
  }
}

/** Return the bytes of a record's value. Raises ApiError. */
export async function valueOf(params) {
  const response = await asked(`/api/value?${new URLSearchParams(params)}`, { headers: headers({}) });
  return response.blob();
}

/** Make a change, and return what came of it. Raises ApiError. */
export async function change(name, fields) {
  const response = await asked("/api/change", {
    method: "POST",
    headers: headers({ "content-type": "application/json" }),
    body: JSON.stringify({ change: name, ...fields }),
  });
  return response.json();
}

/** Yield the lines of a stream, decoded, until it ends or `signal` aborts it. Raises ApiError. */
export async function* lines(name, params, signal) {
  const response = await asked(`/api/${name}?${new URLSearchParams(params)}`, { headers: headers({}), signal });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const found = (rest + value).split("\n");
      rest = found.pop();
      for (const line of found) if (line) yield JSON.parse(line);
    }
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "the tail broke off");
  }
}
