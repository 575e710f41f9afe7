//! `dray remote`, and `dray serve --stdio` as a forced command: the far end of a copy, started by ssh, speaking the peer protocol on standard input and output.

use std::ffi::OsStr;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use dray_core::frame::{FRAME_HEAD_BYTES, FrameHead, FrameKind};
use dray_core::message::{Copy, CopyRole, Fault, Message, ObjectName, Offer, Open, Tree, tree_flag};
use dray_core::{Error, ErrorKind, Result};
use dray_engine::session::{Holder, Receiver, negotiate};
use dray_transfer::direct::is_local;
use dray_transfer::holder::{Held, Provider, serve};
use dray_transfer::transport::{
    Channel, CompressingChannel, Duplex, LimitedChannel, PipeChannel, RateLimit, Security, UnpackingChannel,
    push_control, read_exact_until,
};

use super::DIRECT_FROM_BYTES;
use super::direct::{Door, HoldingDoor, ssh_connection};
use super::origin::Origin;
use super::reach::{self, Confinement, Source};
use super::receive::Incoming;
use super::tree::{AskedTrees, Knows, is_told_a_list, read_chosen, read_more};
use crate::explain::Watch;
use crate::{Event, Node, Stop, plain_hello};

/// How the error of a far end begins that nobody asked for anything: whoever started it has not heard of it.
pub const UNASKED: &str =
    "nothing was asked for on standard input, where `dray cp` and `dray sync` ask over ssh";

/// How long the other side may take for its first messages.
const PATIENCE: Duration = Duration::from_secs(30);

/// What the near end said and what it is to be answered with first.
struct Asked {
    copy: Copy,
    hello_body: Vec<u8>,
    preface: Vec<u8>,
    within: Option<Arc<Confinement>>,
}

/// Tells the near end of a copy why no far end comes up here (a configuration or data directory that is not in order), over
/// the `input` and `output` on which it waits for one. Gives the error back as it was told.
pub fn refuse_remote(input: OwnedFd, output: OwnedFd, error: Error) -> Error {
    let Ok(mut channel) = PipeChannel::new(input, output) else { return error };
    // Heard before it is answered, so that it is not still speaking when we are gone.
    let _ = read_control(&mut channel, Instant::now() + PATIENCE);
    let mut preface = Vec::new();
    push_control(&mut preface, &Message::Hello(plain_hello()));
    tell(&mut channel, preface, cannot_start(&error))
}

/// What the near end is told of a far end that does not come up.
fn cannot_start(error: &Error) -> Error {
    // What to do does not cross the wire, so it stands in what failed.
    let advice = error.advice().map_or_else(String::new, |advice| format!(" ({advice})"));
    // A mistake in a file there is none on the near end's command line, and has no code on the wire.
    let kind = if error.kind() == ErrorKind::Usage { ErrorKind::Refused } else { error.kind() };
    Error::new(kind, format!("dray cannot start there: {error}{advice}"))
}

impl Node {
    /// Plays the far end of a copy over `input` and `output` (`dray remote`) until it is done. An error has been told
    /// to the other side, if it listens. With a confinement (`dray serve --stdio --only`) nothing outside of it is read
    /// or written for the other side, and an error that kept it from being made is told, too.
    pub fn remote_on(
        &self,
        input: OwnedFd,
        output: OwnedFd,
        confinement: Option<Result<Confinement>>,
        stop: &Stop,
    ) -> Result<()> {
        let channel = PipeChannel::new(input, output)
            .map_err(|error| Error::io("take over standard input and output", error))?;
        self.remote(channel, confinement, stop)
    }

    fn remote(
        &self,
        mut channel: PipeChannel,
        confinement: Option<Result<Confinement>>,
        stop: &Stop,
    ) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        let hello = self.hello();
        let mut preface = Vec::new();
        push_control(&mut preface, &Message::Hello(hello.clone()));
        let hello_body = match read_control(&mut channel, deadline) {
            Err(error) if error.kind() == ErrorKind::Protocol => {
                return Err(tell(&mut channel, preface, error));
            }
            Err(error) if matches!(error.kind(), ErrorKind::Unreachable | ErrorKind::TimedOut) => {
                return Err(error.context(UNASKED));
            }
            hello_body => hello_body?,
        };
        let not_by_hand =
            || Error::new(ErrorKind::Protocol, "this is the far end of `dray cp`; it is not started by hand");
        // Versions first: a newer peer's other messages may not even decode here.
        let mut knows = Knows::default();
        let greeted = match Message::from_bytes(&hello_body) {
            Ok(Message::Hello(theirs)) => {
                knows = Knows::of(&theirs);
                negotiate(&hello, &theirs).map(|_| ())
            }
            Ok(_) => Err(not_by_hand()),
            Err(error) => Err(error),
        };
        let within = match greeted.and_then(|()| confinement.transpose()) {
            Ok(within) => within.map(Arc::new),
            Err(error) => return Err(tell(&mut channel, preface, error)),
        };
        let asked = read_control(&mut channel, deadline).and_then(|body| match Message::from_bytes(&body)? {
            asked @ (Message::Copy(_) | Message::Tree(_)) => Ok(asked),
            _ => Err(not_by_hand()),
        });
        let copy = match asked {
            // `within` goes with whatever is asked for.
            Ok(Message::Copy(copy)) => copy,
            Ok(Message::Tree(tree)) => {
                let read = read_more(tree, &mut || read_control(&mut channel, deadline));
                let read = read.and_then(|tree| {
                    // As long as more of it comes.
                    let mut next = || read_control(&mut channel, Instant::now() + PATIENCE);
                    let chosen = is_told_a_list(&tree).then(|| read_chosen(&mut next));
                    Ok((tree, chosen.transpose()?))
                });
                let within = within.as_deref();
                return match read {
                    Ok((tree, chosen)) => {
                        let asked = AskedTrees { tree: &tree, chosen };
                        self.far_trees(channel, asked, preface, knows, within, stop)
                    }
                    Err(error) => Err(tell(&mut channel, preface, error)),
                };
            }
            Ok(_) => return Err(not_by_hand()),
            Err(error) => return Err(tell(&mut channel, preface, error)),
        };
        let offer = match copy.role {
            CopyRole::Receive => match Message::from_bytes(&read_control(&mut channel, deadline)?)? {
                Message::Offer(offer) => Some(offer),
                _ => {
                    return Err(tell(
                        &mut channel,
                        preface,
                        Error::new(ErrorKind::Protocol, "no offer came"),
                    ));
                }
            },
            CopyRole::Send => None,
        };
        // What is known of one file is kept in the data directory, so that its copy goes on where it stopped.
        let opened;
        let node = match &self.store {
            Some(_) => self,
            None => match Node::open(self.config.clone()) {
                Ok(node) => {
                    opened = node;
                    &opened
                }
                Err(error) => return Err(tell(&mut channel, preface, cannot_start(&error))),
            },
        };
        let asked = Asked { copy, hello_body, preface, within };
        match offer {
            Some(offer) => node.receive_here(channel, asked, offer, stop),
            None => node.send_from_here(channel, asked, stop),
        }
    }

    fn receive_here(
        &self,
        channel: PipeChannel,
        Asked { copy, hello_body, preface, within }: Asked,
        offer: Offer,
        stop: &Stop,
    ) -> Result<()> {
        let mut receiver = Receiver::new(self.hello(), None, false);
        receiver.handle_control(&hello_body)?;
        let (sees, seen_as) = ssh_connection().unzip();
        let is_compressed = copy.compressed == Some(true);
        let channel = unpacked(Box::new(channel), is_compressed)?;
        // The near end is the user's own command: the name is the one of the file it was told to send.
        let offer_name = offer.name.to_vec();
        let incoming = Incoming {
            peer: "the sending side".into(),
            channel,
            receiver,
            preface,
            offer,
            preserve: copy.preserve,
            whole_file: copy.whole_file == Some(true),
            // Where its user's own configuration says so, and no further.
            search: None,
            fsync: copy.fsync,
            name: OsStr::from_bytes(&offer_name).to_owned(),
            is_other_host: sees.is_some(),
            allow_local: sees.is_some_and(is_local),
            seen_as: seen_as.into_iter().collect(),
            sees,
            is_compressed,
            within,
        };
        let asked = OsStr::from_bytes(&copy.path);
        let wish = if incoming.within.is_some() { PathBuf::from(asked) } else { reach::home_path(asked) };
        let watch = Watch::new(&self.config.paths, "cp");
        let result = self.receive(incoming, &wish, &watch, &|_: Event| {}, stop);
        watch.end(&result);
        result.map(|_| ())
    }

    fn send_from_here(
        &self,
        mut channel: PipeChannel,
        Asked { copy, hello_body, mut preface, within }: Asked,
        stop: &Stop,
    ) -> Result<()> {
        let is_stopped = || stop.is_set();
        let found = match reach::source(OsStr::from_bytes(&copy.path), within.as_deref(), &is_stopped) {
            Ok(Source::Several(_) | Source::Unsized) if copy.or_several == Some(true) => {
                return self.far_trees(
                    channel,
                    AskedTrees { tree: &several(&copy), chosen: None },
                    preface,
                    Knows::default(),
                    within.as_deref(),
                    stop,
                );
            }
            found => found.and_then(Source::one),
        };
        let opened = found.and_then(|file| Origin::of(file, self.id(), &self.config.paths.data_dir));
        let (origin, offer) = match opened.and_then(|origin| origin.offer().map(|offer| (origin, offer))) {
            Ok((mut origin, offer)) => {
                origin.stop = stop.clone();
                (Arc::new(origin), offer)
            }
            Err(error) => return Err(tell(&mut channel, preface, error)),
        };
        let mut holder = Holder::new(self.hello());
        holder.handle_control(&hello_body)?;
        let is_compressed = copy.compressed == Some(true);
        let is_large = offer.size_bytes >= DIRECT_FROM_BYTES && !is_compressed;
        let limit = copy.rate_bytes.map(RateLimit::new);
        push_control(&mut preface, &Message::Offer(offer));
        let connection = ssh_connection();
        let door = match connection {
            // A confined login makes us neither listen nor dial, nor hear our addresses.
            Some((_, server)) if is_large && within.is_none() => {
                self.holding_door(&origin, &[server], limit.clone(), &mut preface)
            }
            _ => None,
        };
        let provider = FarSender {
            object: origin.object(),
            origin: origin.clone(),
            door: OnceLock::new(),
            sees: connection.map(|(client, _)| client),
            is_over: Arc::new(AtomicBool::new(false)),
        };
        if let Some(door) = door {
            let _ = provider.door.set(door);
        }
        let channel = packed(Box::new(channel), is_compressed, limit.as_ref(), &mut preface)?;
        let result = serve(channel, holder, preface, &provider, None);
        provider.is_over.store(true, Ordering::Release);
        if let Some(door) = provider.door.get() {
            door.door.close();
        }
        result.inspect_err(|error| origin.ended(error))
    }

    /// Listens for the receiver and says so in `preface`; `None` if listening fails, and ssh carries everything.
    pub(super) fn holding_door(
        &self,
        origin: &Arc<Origin>,
        seen_as: &[IpAddr],
        limit: Option<Arc<RateLimit>>,
        preface: &mut Vec<u8>,
    ) -> Option<HoldingDoor> {
        let door = Door::open(self, seen_as).ok()?;
        push_control(preface, &Message::Direct(door.invitation.clone()));
        Some(HoldingDoor::new(self, door, origin.clone(), origin.object(), limit))
    }
}

/// A wish for one file as one for the several that its path stands for.
fn several(copy: &Copy) -> Tree {
    let kept = if copy.preserve { tree_flag::TIMES | tree_flag::MODES } else { 0 };
    let is_compressed = copy.compressed == Some(true);
    let compressed = if is_compressed { tree_flag::COMPRESSED } else { 0 };
    Tree {
        role: CopyRole::Send,
        paths: vec![copy.path.clone()],
        names: Vec::new(),
        flags: tree_flag::PATTERNS | tree_flag::FOLLOW_SOURCES | kept | compressed,
        excludes: None,
        modes: None,
        owner: None,
        rate_bytes: copy.rate_bytes,
        sync: None,
        origin: None,
        digests: None,
    }
}

/// What the far end serves over ssh: one file, to whoever ssh let in.
struct FarSender {
    object: ObjectName,
    origin: Arc<Origin>,
    door: OnceLock<HoldingDoor>,
    sees: Option<IpAddr>,
    is_over: Arc<AtomicBool>,
}

impl Provider for FarSender {
    fn open(&self, open: &Open, _: Option<&Security>) -> Result<Arc<dyn Held>> {
        if open.object == self.object {
            Ok(self.origin.clone())
        } else {
            Err(Error::new(ErrorKind::NotFound, "not the file of this copy"))
        }
    }

    fn copy(&self, message: Message) -> Result<()> {
        match message {
            Message::Direct(theirs) => {
                if let Some(door) = self.door.get() {
                    let is_over = self.is_over.clone();
                    let allow_local = self.sees.is_some_and(is_local);
                    let is_over = Arc::new(move || is_over.load(Ordering::Acquire));
                    door.handle_direct(theirs, self.sees, allow_local, is_over)?;
                }
                Ok(())
            }
            Message::Delivered(_) => {
                self.origin.delivered();
                Ok(())
            }
            Message::Progress(_) => Ok(()),
            _ => Err(Error::new(ErrorKind::Protocol, "copy message out of place")),
        }
    }
}

/// The channel of a sending side: under its limit, and, if asked for, compressed after `preface`, which leaves as it is.
pub(super) fn packed(
    mut channel: Box<dyn Duplex>,
    is_compressed: bool,
    limit: Option<&Arc<RateLimit>>,
    preface: &mut Vec<u8>,
) -> Result<Box<dyn Duplex>> {
    if is_compressed {
        // One that is closed by now is noticed by whoever reads.
        let _ = channel.write_all(&std::mem::take(preface));
    }
    let channel = LimitedChannel::wrap_duplex(channel, limit);
    if !is_compressed {
        return Ok(channel);
    }
    let packed = CompressingChannel::new(channel).map_err(|error| Error::io("begin to compress", error))?;
    Ok(Box::new(packed))
}

/// The channel of a receiving side.
pub(super) fn unpacked(channel: Box<dyn Duplex>, is_compressed: bool) -> Result<Box<dyn Duplex>> {
    if !is_compressed {
        return Ok(channel);
    }
    let unpacked = UnpackingChannel::new(channel).map_err(|error| Error::io("begin to unpack", error))?;
    Ok(Box::new(unpacked))
}

/// Tells the other side of an error before the session proper has begun.
pub(super) fn tell(channel: &mut dyn Channel, mut preface: Vec<u8>, error: Error) -> Error {
    // A directory where a file was asked for is a slip of the other side's command line, and nothing that is wrong in here.
    let fault = match error.kind() {
        ErrorKind::Usage => Fault::from_error(None, &Error::new(ErrorKind::Refused, error.to_string())),
        _ => Fault::from_error(None, &error),
    };
    push_control(&mut preface, &Message::Fault(fault));
    let _ = channel.write_all(&preface);
    error
}

/// Reads one control frame.
fn read_control(channel: &mut dyn Channel, deadline: Instant) -> Result<Vec<u8>> {
    read_control_until(channel, deadline, &|| false)
}

/// [`read_control`], `Interrupted` soon after `is_stopped` says yes.
pub(super) fn read_control_until(
    channel: &mut dyn Channel,
    deadline: Instant,
    is_stopped: &dyn Fn() -> bool,
) -> Result<Vec<u8>> {
    let mut head = [0; FRAME_HEAD_BYTES];
    read_exact_until(channel, &mut head, deadline, is_stopped)?;
    let head = FrameHead::decode(head)?;
    if head.kind != FrameKind::Control {
        return Err(Error::new(ErrorKind::Protocol, "the other side sent data before it was asked"));
    }
    let mut body = vec![0; head.body_bytes];
    read_exact_until(channel, &mut body, deadline, is_stopped)?;
    Ok(body)
}
