# frozen_string_literal: true

module EventMachine
  module Protocols
    # Lines of a limited length, and in between texts of a known length.
    class LineAndTextProtocol < Connection
      # A longer line is an error, and ends the connection.
      MaxLineLength = 16 * 1024
      MaxBinaryLength = 32 * 1024 * 1024

      def initialize(*)
        super
        reset_lines
      end

      def receive_data(data)
        reset_lines unless @latp_input
        return if @latp_failed

        @latp_input << data
        return if @latp_busy

        @latp_busy = true
        begin
          nil while !@latp_failed && take_line_or_text
        ensure
          @latp_busy = false
        end
      end

      # The next bytes are a text of this length. Without a length, everything that follows is one, in pieces.
      def set_binary_mode(size = nil)
        @latp_text = size || :unlimited
        return unless size&.zero?

        @latp_text = nil
        receive_binary_data('')
      end

      # What was received of a text that the peer did not send to its end.
      def unbind
        return unless @latp_text && !@latp_input.empty?

        rest = @latp_input
        @latp_input = +''
        receive_binary_data(rest)
      end

      def receive_line(_line); end

      def receive_binary_data(_text); end

      def receive_error(_text); end

      private

      def reset_lines
        @latp_input = String.new(encoding: Encoding::BINARY)
        @latp_text = nil
        @latp_failed = @latp_busy = false
      end

      def take_line_or_text
        return false if @latp_input.empty?

        @latp_text ? take_text : take_line
      end

      def take_line
        at = @latp_input.index("\n")
        length = at || @latp_input.bytesize
        if length > MaxLineLength
          @latp_failed = true
          receive_error('overlength line')
          close_connection
          return false
        end
        return false unless at

        receive_line(@latp_input.slice!(0, at + 1).chomp)
        true
      end

      def take_text
        if @latp_text == :unlimited
          text = @latp_input
          @latp_input = String.new(encoding: Encoding::BINARY)
          receive_binary_data(text)
        else
          return false if @latp_input.bytesize < @latp_text

          text = @latp_input.slice!(0, @latp_text)
          @latp_text = nil
          receive_binary_data(text)
        end
        true
      end
    end
  end
end
