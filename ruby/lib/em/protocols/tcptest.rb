# frozen_string_literal: true

module EventMachine
  module Protocols
    # Finds out whether a server accepts connections: a deferrable.
    class TcpConnectTester < Connection
      include EventMachine::Deferrable

      def self.test(host, port)
        EventMachine.connect(host, port, self)
      end

      def initialize
        super
        @accepted = false
      end

      def connection_completed
        @accepted = true
        set_deferred_status(:succeeded)
        close_connection
      end

      def unbind
        set_deferred_status(:failed) unless @accepted
      end
    end
  end
end
