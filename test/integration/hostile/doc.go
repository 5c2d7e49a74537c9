// Package hostile tests belay against a tenant who means harm: who writes whatever RBAC lets
// him, into his own namespace, and sends whatever he likes to belay's ports. He must gain
// nothing in another namespace, others must lose nothing, and belay's memory must stay flat.
//
// The same holds where it is belay that hangs, or is slow: nobody else is held up.
//
// What single answers are like is tested where the answers are made: tokens of others in
// witnessed, marks and rights in named, the guard of Anchors in owned, records in recovered.
package hostile
