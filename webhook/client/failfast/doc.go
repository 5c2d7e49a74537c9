// Package failfast makes a client-go configuration whose calls end in time and
// whose dead connections are replaced.
//
// Bounding calls is not enough. When the API server's side of a connection
// vanishes without a word (a node is lost, a NAT entry expires), client-go goes on
// to send every further call down the same HTTP/2 connection, and each of them runs
// into its own time-out, until a ping fails 45 s later, although a new connection
// would be answered at once. [Config] adds what is missing:
//
//   - connecting is bounded (10 s, instead of 30 s);
//   - a call is bounded, from its first byte to the last one of the answer (30 s,
//     instead of for ever);
//   - a connection that owed an answer and was silent for half of that bound is
//     closed as soon as a call on it runs out of time, of the bound or of its
//     caller's own, and the next call dials anew. So a dead peer costs one bound,
//     and not one a call.
//
// An answer keeps the connection, whatever it says (403, 404, 500). So does a call
// that runs out of time, or whose context its caller ended, while others on the
// same connection are answered: then the call is slow and not the connection, and
// closing it would break off everybody's watches and writes. Only the connection
// that is silent is closed, with those to the same address that were not heard
// since: never one that was dialled in the meantime.
//
// Not bounded are calls that have no natural end: watches, logs that are followed,
// exec, attach, port-forward, and whatever else asks for an upgrade. A dead
// connection under a watch is found by pings, or by the next bounded call on it.
//
// # Use
//
//	cfg := failfast.Config(ctrl.GetConfigOrDie())
//	mgr, err := ctrl.NewManager(cfg, ctrl.Options{})
//
// Call it once, not in every reconcile. client-go keeps a transport, and so a
// connection, for each client that is made from a configuration with a dialer: its
// cache of transports compares dialers by a pointer that is made anew each time.
// (Before client-go 0.36 it kept them for ever.) Where several clients should share
// one connection, take [Client] and hand its http.Client to all of them:
//
//	cfg, httpClient, err := failfast.Client(cfg)
//	clientset, err := kubernetes.NewForConfigAndClient(cfg, httpClient)
//	c, err := client.New(cfg, client.Options{HTTPClient: httpClient})
//
// A manager makes one http.Client for its cache, client and mapper by itself, and
// another one for leader election, which is as well: a lease should not wait behind
// a list.
//
// # What is left as it is
//
//   - The TLS handshake: client-go bounds it by 10 s of its own.
//   - HTTP/2 pings: client-go sends one after 30 s of silence and closes the
//     connection 15 s later. The environment variables
//     HTTP2_READ_IDLE_TIMEOUT_SECONDS and HTTP2_PING_TIMEOUT_SECONDS change that for
//     the whole process; there is no other supported way.
//   - Config.Timeout, where it is set: it bounds watches, too.
//   - Config.Transport, where it is set: client-go then dials nothing, so calls are
//     bounded and connections are not closed.
//   - Retries: client-go repeats a call that was answered 429 or 5xx with
//     Retry-After, up to ten times; the bound is one for each of those.
//
// A list of very many objects can take longer than the bound. Raise it for such a
// client with [RequestTimeout].
package failfast
