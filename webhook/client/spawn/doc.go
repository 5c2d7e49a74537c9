// Package spawn creates the objects of one piece of work so that a lost answer, a
// time-out or a restart of the API server neither strands the work nor starts it
// twice. It is for authors of controllers, needs belay neither installed nor known,
// and is better off where it is.
//
// # What goes wrong without it
//
// A controller that spawns makes a few calls in a row: create a Secret, create the
// Job that uses it, make the Job the Secret's owner. Each can fail in a way that
// says nothing about whether it was carried out. A controller that gives up then
// leaves a Secret without an owner, or reports a failure while the Job runs. One
// that begins anew gets AlreadyExists from its own first try, or, with names made
// up at random, starts the work twice. One that takes every AlreadyExists for its
// own takes other people's objects for its work.
//
// # Use
//
//	name := spawn.Name("restore", backup.Name)
//	secret, job := newSecret(name, token), newJob(name)
//	_, err := spawn.Options{Failed: markFailed}.Do(ctx, c,
//		spawn.Create(secret).Identity(backup.UID),
//		spawn.Create(job).Identity(backup.UID).PointOfNoReturn(),
//		spawn.Patch(func() (client.Object, client.Patch, error) {
//			owned := secret.DeepCopy()
//			owned.OwnerReferences = ownedBy(job) // its UID is known by now
//			return owned, client.MergeFrom(secret), nil
//		}),
//	)
//
// [Do] retries until everything is done, something is refused, or the budget is
// spent (2 minutes, Options.Budget). It knows which steps are done and goes on from
// the first that is not, one API call a try, with a back-off that is jittered,
// grows to 5 s, and waits longer where the server asks for that. [Classify] tells
// what is worth a retry.
//
// [Step.PointOfNoReturn] marks the step after which the work runs. What fails before
// it fails the spawn: Options.Failed is called, with a context that lives even if
// the spawn's was cancelled, and Do returns an *[Error]. What fails after it is a
// *[Warning]: work that runs must not be reported as failed for want of an owner
// reference.
//
// Where objects need what earlier steps learnt, use [CreateFrom], [Update] and
// [Patch], whose functions are called when it is known. [Call] does anything else.
//
// # The same work
//
// A create that finds an object of its name asks whose that is, in this order:
//
//  1. belay's answer, where a NamePolicy covers the object: the cause
//     belay.dev/same-work or belay.dev/other-work in the answer's details. It holds
//     whatever the code is, for policies choose that.
//  2. The object, which is read next. One that went meanwhile is created, one that
//     is being deleted is waited for. Otherwise it is of the same work if
//     Step.Same says so; or, without that, if belay's annotation belay.dev/work is
//     on both and is equal; or, without that, if this package's annotation
//     belay.dev/spawn is equal, which every Create sets: a digest of Step.Identity,
//     or of the whole object as given. Whether the object has finished does not
//     matter: work that ended is not begun again by a retry.
//  3. Where the object must not be read (403), it is read by a list of that one
//     name, if the client can list. Some roles allow only that.
//  4. Where nothing may be read, there is one case in which the object is taken for
//     the caller's own: this Do had sent a create for it before, and that had no
//     answer that says what became of it. Then the step is done, its UID is unknown,
//     and a Warning says so. In any other case the step fails with
//     [ErrUnknownWork]: an object that was there before the first try may be
//     anybody's, and taking it would run nothing and report success.
//
// A create that is refused after one that had no answer is looked into in the same
// way: with a quota of one Job, the object of the first is what the second is
// refused for.
//
// The same work is success: the object's UID, and the whole object where it can be
// read, is in the caller's variable, and Result.Recovered names the step. Other work
// is a *[WorkError] with ErrOtherWork and the UID of what is there.
//
// Point 4 has a hole that the API leaves no way to close: a create without an answer,
// then somebody else's object of the same name. Names by [Name] make that the same
// work by construction.
//
// The default identity, the whole object as given, suits objects that depend on
// their work alone. A version label, a time or a token made afresh makes the next
// try other work; leave those out with Step.Identity. The digest of a Secret covers
// its content, and who reads the annotation can test guesses of it: give Identity
// for Secrets whose content can be guessed.
//
// # Clients
//
// Client is a part of controller-runtime's client.Client. It must read from the API
// server, not from a cache. Each try has a bound (Options.TryTimeout), but only
// webhook/client/failfast keeps the next one from running into the same dead
// connection.
//
// client-go repeats calls by itself: those answered 429 or 5xx with Retry-After, up
// to ten times, inside of what is one try here. So a try can take long, it can find
// AlreadyExists for what its own first half created, and the server is asked more
// often than Result.Tries tells.
package spawn
