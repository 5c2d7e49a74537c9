// Package channel is the HTTPS client of every remote call in belay that is not
// made by client-go: the sidecar's reports, and the calls of the library in
// webhook/client.
//
// It exists because bounding a request is not enough. When a peer vanishes
// without a word (a node is lost, a NAT entry expires), the HTTP client keeps
// the dead connection in its pool and every further request runs into its own
// time-out on it, one after another, although a new connection would reach a
// healthy replica at once. So:
//
//   - connecting, from the name look-up to the end of the TLS handshake, is
//     bounded;
//   - a request is bounded, from its first byte to the last one of the answer;
//   - idle connections are watched by HTTP/2 pings, and a caller that will be
//     quiet for long can let its connection go;
//   - after a transport error the connection is dropped, and the next call
//     dials anew;
//   - an answer keeps the connection, whatever it says (403, 404), save one
//     that speaks of the replica rather than of the request (502, 503, 504):
//     the next call should be able to reach another replica.
//
// Nothing is retried here, since only the caller knows what may be sent twice.
// [Backoff] tells how long to wait.
package channel
