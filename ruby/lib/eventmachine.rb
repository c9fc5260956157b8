# frozen_string_literal: true

# EventMachine's API on the Pelton reactor. The functions on signatures are in the native library; everything else is in em/.

require 'socket'
# Not used here, but programs expect EventMachine to have loaded it.
require 'timeout'
require 'em/version'
require 'pelton_eventmachine'
require 'em/errors'
require 'em/callback'
require 'em/deferrable'
require 'em/completion'
require 'em/timers'
require 'em/reactor'
require 'em/ticks'
require 'em/threadpool'
require 'em/handlers'
require 'em/servers'
require 'em/descriptors'
require 'em/connection'
require 'em/tls'
require 'em/extras'
require 'em/channel'
require 'em/queue'
require 'em/iterator'
require 'em/pool'
require 'em/threaded_resource'
require 'em/tick_loop'
require 'em/spawnable'
require 'em/buftok'
require 'em/processes'
require 'em/file_watch'
require 'em/process_watch'
require 'em/streamer'
require 'em/protocols'

EM = EventMachine
EM::P = EventMachine::Protocols
